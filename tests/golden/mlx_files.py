"""MLX checkpoints: names and conventions of mlx-lm's converters, quantised by mlx's own quantiser."""

import json
import math

import numpy as np
import torch
from safetensors.torch import save_file

from weights import is_zero_centred

TORCH_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def unpack(words: np.ndarray, bits: int, columns: int) -> np.ndarray:
    """A row is one little-endian bit stream (formats.md section 4)."""
    stream = np.unpackbits(words.astype("<u4").view(np.uint8).reshape(words.shape[0], -1), axis=1, bitorder="little")
    codes = stream.reshape(words.shape[0], columns, bits)
    return (codes.astype(np.int64) << np.arange(bits)).sum(axis=-1)


def quantise(matrix: torch.Tensor, bits: int, group: int, dtype: torch.dtype):
    """-> stored tensors of the module, and the fp32 values they stand for. `matrix` may be a stack [E, N, K]."""
    import mlx.core as mx

    mlx_dtype = {torch.bfloat16: mx.bfloat16, torch.float16: mx.float16, torch.float32: mx.float32}[dtype]
    flat = matrix.reshape(-1, matrix.shape[-1])
    words, scales, biases = mx.quantize(mx.array(flat.to(dtype).float().numpy()).astype(mlx_dtype), group_size=group,
                                        bits=bits)
    words = np.array(words)
    # fp64 holds code * scale + bias exactly for 16-bit scales: one rounding to fp32, as a fused multiply-add has.
    wide = [np.repeat(np.array(part.astype(mx.float32)).astype(np.float64), group, axis=1) for part in (scales, biases)]
    values = (unpack(words, bits, flat.shape[-1]) * wide[0] + wide[1]).astype(np.float32)
    leading = list(matrix.shape[:-1])
    stored = {
        "weight": torch.from_numpy(words.astype(np.uint32)).reshape(leading + [-1]),
        "scales": torch.from_numpy(np.array(scales.astype(mx.float32))).to(dtype).reshape(leading + [-1]),
        "biases": torch.from_numpy(np.array(biases.astype(mx.float32))).to(dtype).reshape(leading + [-1]),
    }
    return stored, torch.from_numpy(values).reshape(matrix.shape)


def setting(case, path: str):
    """-> (bits, group) or None. An override stands on its own defaults: {"bits": 8} means group 64."""
    override = case.overrides.get(path, True)
    if override is False:
        return None
    if override is True:
        return case.bits, case.group
    return override.get("bits", 4), override.get("group_size", 64)


def is_vector(name: str) -> bool:
    return name.endswith(("norm.weight", ".bias", "A_log", "dt_bias", "conv1d.weight"))


def mlx_modules(case, state: dict):
    """Yields (path without body prefix, [HF names], matrix): experts stacked as switch_mlp, gate and up apart."""
    for name, value in state.items():
        short = name.removeprefix("model.")
        if short.endswith("mlp.experts.gate_up_proj"):
            base = short.removesuffix("experts.gate_up_proj") + "switch_mlp."
            gate, up = value.chunk(2, dim=1)
            yield base + "gate_proj", (name, 0), gate.contiguous()
            yield base + "up_proj", (name, 1), up.contiguous()
        elif short.endswith("mlp.experts.down_proj"):
            yield short.replace("experts.down_proj", "switch_mlp.down_proj"), (name, None), value
        elif not is_vector(short):
            yield short.removesuffix(".weight"), (name, None), value


def write(case, state: dict, folder) -> dict:
    """Writes config.json and model.safetensors; returns the state that a loader sees, in HF names and conventions."""
    dtype = TORCH_DTYPES[case.dtype]
    head_prefix = case.prefix.removesuffix("model.")
    stored, seen = {}, {}

    def file_name(short: str) -> str:
        return (head_prefix if short.startswith("lm_head") else case.prefix) + short

    quantization = {"group_size": case.group, "bits": case.bits, "mode": "affine"}
    for path, (name, half), matrix in mlx_modules(case, state):
        how = setting(case, path)
        if how is not None and matrix.shape[-1] % how[1] != 0:
            raise ValueError(f"{case.name}: {path} has {matrix.shape[-1]} columns, not a multiple of {how[1]}")
        if how is None:
            value = matrix.to(dtype)
            stored[file_name(path) + ".weight"] = value
            value = value.float()
        else:
            parts, value = quantise(matrix, *how, dtype)
            stored |= {f"{file_name(path)}.{part}": tensor for part, tensor in parts.items()}
        if path in case.overrides:
            quantization[file_name(path)] = case.overrides[path]
        seen[name] = value if half is None else (value if half == 0 else torch.cat([seen[name], value], dim=1))
    for name, value in state.items():
        short = name.removeprefix("model.")
        if not is_vector(short):
            continue
        if short.endswith("A_log"):
            stored[file_name(short)], seen[name] = value, value  # never cast
            continue
        folded = case.family.startswith("qwen3_5") and is_zero_centred(case.family, name)
        kept = (value + 1.0 if folded else value).to(dtype)
        seen[name] = kept.float() - 1.0 if folded else kept.float()
        if short.endswith("conv1d.weight"):
            kept = kept.movedim(2, 1).contiguous()  # (C, 1, K) -> (C, K, 1)
        stored[file_name(short)] = kept
    for name, shape in case.skipped_tensors.items():
        stored[name] = torch.ones(shape, dtype=dtype)
    save_file(stored, folder / "model.safetensors", metadata={"format": "mlx"})
    config = case.config | {"quantization": quantization, "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return seen
