"""Hugging Face directories: names as in released files."""

import json

import torch
from safetensors.torch import save_file

TORCH_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def file_tensors(case, state: dict):
    """Yields (name in the file, HF name, slice of the HF tensor)."""
    for name, value in state.items():
        if name.startswith(("lm_head", "mtp.")):
            yield name, value
            continue
        target = case.prefix + name.removeprefix("model.")
        if ".mlp.experts." not in name or case.stacked_experts:
            yield target, value
            continue
        base = target.rsplit(".", 1)[0]
        for expert in range(value.shape[0]):
            if name.endswith("gate_up_proj"):
                gate, up = value[expert].chunk(2, dim=0)
                yield f"{base}.{expert}.gate_proj.weight", gate.contiguous()
                yield f"{base}.{expert}.up_proj.weight", up.contiguous()
            else:
                yield f"{base}.{expert}.down_proj.weight", value[expert].contiguous()


def write(case, state: dict, folder) -> dict:
    """Writes config.json and model.safetensors; returns the fp32 values that a loader sees."""
    dtype = TORCH_DTYPES[case.dtype]
    keep = lambda name, value: value if name.endswith("A_log") else value.to(dtype)  # A_log stays F32 in real files
    stored = {target: keep(target, value) for target, value in file_tensors(case, state)}
    for name, shape in case.skipped_tensors.items():
        stored[name] = torch.ones(shape, dtype=dtype)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    config = case.config | {"dtype": {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}[case.dtype]}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return {name: keep(name, value).float() for name, value in state.items()}
