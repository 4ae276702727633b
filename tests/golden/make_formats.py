"""Makes tests/golden/formats/: one small file set that holds every weight format beside its expected fp32 values.

Codes and expected values come from other implementations: affine packs from mlx.quantize, GGUF blocks from the gguf
package (random bytes for the K formats, which it can't write). Three checks run while the files are made, so that the
committed numbers can be trusted:
  1. affine with F32 scales: mlx.dequantize agrees with ours within 1 fp32 ulp (a fused or a plain multiply-add);
     with 16-bit scales mlx evaluates in that type, so it is compared after rounding to it, within 1 ulp of that type;
  2. GGUF: gguf.quants.dequantize agrees within 1 fp32 ulp of the larger term, since it rounds the product first;
  3. the expected values are exact: code * scale + bias in exact rational arithmetic, rounded once to fp32.

Usage (mlx and gguf are needed): python tests/golden/make_formats.py
"""

import json
import struct
from fractions import Fraction
from pathlib import Path

import gguf
import mlx.core as mx
import numpy as np
from gguf.quants import dequantize, quantize

HERE = Path(__file__).parent / "formats"
RNG = np.random.default_rng(20261129)


def fused(code, scale, bias):
    """fma(code, scale, bias) rounded once to fp32, by exact rational arithmetic."""
    out = np.empty(np.broadcast(code, scale, bias).shape, np.float32)
    for index, (q, s, b) in enumerate(np.broadcast(code, scale, bias)):
        exact = Fraction(int(q)) * Fraction(float(s)) + Fraction(float(b))
        out.flat[index] = round_to_fp32(exact)
    return out


def round_to_fp32(exact):
    if exact == 0:
        return np.float32(0)
    magnitude = abs(exact)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1
    step = Fraction(2) ** (max(exponent, -126) - 23)
    steps = round(exact / step)  # Fraction rounds half to even
    return np.float32(float(steps * step))


def bf16_to_float(array):
    return (array.astype(np.uint32) << 16).view(np.float32)


def mx_to_numpy(array):
    """(fp32 values, raw bytes, safetensors dtype)"""
    if array.dtype == mx.bfloat16:
        raw = np.array(array.view(mx.uint16))
        return bf16_to_float(raw), raw, "BF16"
    values = np.array(array)
    return values.astype(np.float32), values, {"float16": "F16", "float32": "F32"}[values.dtype.name]


def ulps(left, right):
    def ordered(values):
        bits = np.ascontiguousarray(values, np.float32).view(np.int32).astype(np.int64)
        return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)

    return np.abs(ordered(left) - ordered(right)).max()


def unpack(words, bits, columns):
    """The row as one little-endian bit stream (formats.md section 4), independent of mlx and of the C++ packs."""
    rows = words.reshape(-1, words.shape[-1])
    codes = np.empty((rows.shape[0], columns), np.uint32)
    for r, row in enumerate(rows):
        stream = int.from_bytes(row.astype("<u4").tobytes(), "little")
        for k in range(columns):
            codes[r, k] = (stream >> (k * bits)) & ((1 << bits) - 1)
    return codes.reshape(*words.shape[:-1], columns)


def write_safetensors(path, tensors, metadata):
    """Entries in the order given; written by hand so that the layout (odd header length included) is ours."""
    header, offset = {"__metadata__": metadata}, 0
    for name, (dtype, array) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())


def affine_case(bits, group, dtype, shape):
    weight = mx.array(RNG.standard_normal(shape, np.float32) * 0.1).astype(dtype)
    packed, scales, biases = mx.quantize(weight, group_size=group, bits=bits)
    codes = unpack(np.array(packed), bits, shape[-1])
    scale_values, scale_raw, name = mx_to_numpy(scales)
    bias_values, bias_raw, _ = mx_to_numpy(biases)
    expected = fused(codes, np.repeat(scale_values, group, -1), np.repeat(bias_values, group, -1))
    theirs, _, _ = mx_to_numpy(mx.dequantize(packed, scales, biases, group_size=group, bits=bits))
    if dtype == mx.float32:
        plain = codes.astype(np.float32) * np.repeat(scale_values, group, -1) + np.repeat(bias_values, group, -1)
        assert np.all((ulps(theirs, expected) <= 1) | (theirs == plain)), (bits, group)
    else:
        ours = mx_to_numpy(mx.array(expected).astype(dtype))[0]
        term = np.abs(np.repeat(bias_values, group, -1)) + np.abs(expected)
        step = term * (2.0**-8 if dtype == mx.bfloat16 else 2.0**-11) * 2
        assert np.all(np.abs(theirs - ours) <= step), (bits, group, dtype)
    return {
        "weight": ("U32", np.array(packed)),
        "scales": (name, scale_raw),
        "biases": (name, bias_raw),
        "expected": ("F32", expected),
    }


def make_affine():
    directory = HERE / "affine"
    directory.mkdir(parents=True, exist_ok=True)
    tensors, quantization = {}, {"group_size": 64, "bits": 4}
    dtypes = {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}
    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            for label, dtype in dtypes.items():
                base = f"b{bits}.g{group}.{label}"
                for part, value in affine_case(bits, group, dtype, (2, 256)).items():
                    tensors[f"{base}.{part}"] = value
                quantization[base] = {"group_size": group, "bits": bits}
    for part, value in affine_case(4, 64, mx.bfloat16, (3, 2, 128)).items():
        tensors[f"experts.{part}"] = value
    write_safetensors(directory / "model.safetensors", tensors, {"format": "mlx"})
    config = {"model_type": "formats", "quantization": quantization, "quantization_config": quantization}
    (directory / "config.json").write_text(json.dumps(config) + "\n")


def k_scales(packed):
    """[blocks, 12] -> scales and minima [blocks, 8], written from formats.md section 14."""
    b = packed.astype(np.uint32)
    scale, minimum = np.empty((len(b), 8), np.uint32), np.empty((len(b), 8), np.uint32)
    for j in range(8):
        if j < 4:
            scale[:, j], minimum[:, j] = b[:, j] & 63, b[:, j + 4] & 63
        else:
            scale[:, j] = (b[:, j + 4] & 15) | ((b[:, j - 4] >> 6) << 4)
            minimum[:, j] = (b[:, j + 4] >> 4) | ((b[:, j] >> 6) << 4)
    return scale, minimum


def expected_of(kind, raw):
    """Codes from the bytes by the format's definition, then one fused multiply-add; [blocks, elements]."""
    half = lambda at: raw[:, at : at + 2].copy().view(np.float16).astype(np.float32)
    low = lambda at: np.concatenate([raw[:, at : at + 16] & 15, raw[:, at : at + 16] >> 4], 1).astype(np.uint32)
    fifth = lambda at: ((raw[:, at : at + 4].copy().view("<u4") >> np.arange(32, dtype=np.uint32)) & 1) << 4
    if kind == "Q4_0":
        return fused(low(2), half(0), np.float32(-8) * half(0))
    if kind == "Q4_1":
        return fused(low(4), half(0), half(2))
    if kind == "Q5_0":
        return fused(low(6) | fifth(2), half(0), np.float32(-16) * half(0))
    if kind == "Q5_1":
        return fused(low(8) | fifth(4), half(0), half(2))
    if kind == "Q8_0":
        return raw[:, 2:34].view(np.int8).astype(np.float32) * half(0)
    if kind in ("Q4_K", "Q5_K"):
        scale, minimum = k_scales(raw[:, 4:16])
        scale = half(0) * scale.astype(np.float32)
        minimum = half(2) * minimum.astype(np.float32)
        at = 16 if kind == "Q4_K" else 48
        runs = raw[:, at : at + 128].reshape(-1, 4, 1, 32)
        codes = (np.concatenate([runs & 15, runs >> 4], 2)).reshape(-1, 8, 32).astype(np.uint32)
        if kind == "Q5_K":
            high = raw[:, 16:48].reshape(-1, 1, 32).astype(np.uint32)
            codes |= ((high >> np.arange(8, dtype=np.uint32).reshape(1, 8, 1)) & 1) << 4
        return fused(codes, scale[:, :, None], -minimum[:, :, None]).reshape(len(raw), 256)
    assert kind == "Q6_K"
    d, out = half(208), np.empty((len(raw), 256), np.float32)
    for h in range(2):
        ql, qh = raw[:, 64 * h :].astype(np.uint32), raw[:, 128 + 32 * h :].astype(np.uint32)
        sc = raw[:, 192 + 8 * h : 200 + 8 * h].view(np.int8).astype(np.float32)
        for l in range(32):
            q = [
                (ql[:, l] & 15) | ((qh[:, l] & 3) << 4),
                (ql[:, l + 32] & 15) | (((qh[:, l] >> 2) & 3) << 4),
                (ql[:, l] >> 4) | (((qh[:, l] >> 4) & 3) << 4),
                (ql[:, l + 32] >> 4) | (((qh[:, l] >> 6) & 3) << 4),
            ]
            for run in range(4):
                scale = d[:, 0] * sc[:, l // 16 + 2 * run]
                out[:, 128 * h + 32 * run + l] = fused(q[run], scale, np.float32(-32) * scale)
    return out


def gguf_raw(kind, rows, columns):
    quantization = gguf.GGMLQuantizationType[kind]
    elements, size = gguf.GGML_QUANT_SIZES[quantization]
    if kind in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"):
        return quantize(RNG.standard_normal((rows, columns), np.float32) * 0.1, quantization).reshape(rows, -1)
    blocks = rows * columns // elements
    raw = RNG.integers(0, 256, (blocks, size), np.uint8)
    for at in {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}[kind]:
        halves = (RNG.standard_normal(blocks) * 0.01).astype(np.float16)
        halves[0] = np.float16(3e-6)  # a subnormal half
        raw[:, at : at + 2] = halves.reshape(-1, 1).view(np.uint8)
    return raw.reshape(rows, -1)


def make_gguf():
    writer = gguf.GGUFWriter(HERE / "blocks.gguf", "formats")
    writer.add_block_count(2)
    writer.add_float32("formats.epsilon", 1e-5)
    writer.add_array("formats.numbers", [1, 2, 3])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<s>", "a", "\u0120b", "\u00e9"])
    writer.add_token_scores([0.0, -1.5, -2.0, 3.25])
    writer.add_token_types([3, 1, 1, 1])
    writer.add_token_merges(["a b", "b c"])
    writer.add_bos_token_id(0)
    writer.add_chat_template("{{ messages }}")
    rows, columns = 3, 512
    for kind in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"):
        quantization = gguf.GGMLQuantizationType[kind]
        raw = gguf_raw(kind, rows, columns)
        size = gguf.GGML_QUANT_SIZES[quantization][1]
        expected = expected_of(kind, raw.reshape(-1, size)).reshape(rows, columns)
        theirs = dequantize(raw, quantization).reshape(rows, columns)
        if kind in ("Q4_0", "Q5_0", "Q8_0", "Q6_K"):
            assert np.array_equal(theirs, expected), kind
        else:  # two roundings against one: they differ by at most half an ulp of the rounded product
            assert np.all(np.abs(theirs - expected) <= 2.0**-22 * np.abs(theirs).max()), kind
        writer.add_tensor(f"{kind}.weight", raw, raw_dtype=quantization)
        writer.add_tensor(f"{kind}.expected", expected)
    values = RNG.standard_normal((rows, columns), np.float32)
    values[0, :4] = [2.0**-24, -(2.0**-15), 0.0, 65504.0]  # halves: smallest subnormal, a subnormal, zero, largest
    for kind, stored, back in (
        ("F32", values, values),
        ("F16", values.astype(np.float16), values.astype(np.float16).astype(np.float32)),
        ("BF16", (values.view(np.uint32) >> 16).astype(np.uint16), bf16_to_float(values.view(np.uint32) >> 16)),
    ):
        raw_type = gguf.GGMLQuantizationType[kind]
        data = stored.view(np.uint8) if kind == "BF16" else stored
        writer.add_tensor(f"{kind}.weight", data, raw_dtype=raw_type if kind == "BF16" else None)
        writer.add_tensor(f"{kind}.expected", back)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    HERE.mkdir(parents=True, exist_ok=True)
    make_affine()
    make_gguf()
    print(sum(path.stat().st_size for path in HERE.rglob("*") if path.is_file()), "bytes")
