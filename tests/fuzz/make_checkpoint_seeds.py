"""Makes the seed corpora of the safetensors and gguf targets: small valid files of each kind.

Usage: python tests/fuzz/make_checkpoint_seeds.py  (needs numpy and gguf)
"""

import json
import struct
from pathlib import Path

import gguf
import numpy as np

CORPUS = Path(__file__).parent / "corpus"


def safetensors(tensors, config, metadata=None):
    header, offset = ({"__metadata__": metadata} if metadata else {}), 0
    sizes = {"U8": 1, "U32": 4, "F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1}
    for name, (dtype, shape) in tensors.items():
        size = sizes[dtype] * int(np.prod(shape, dtype=np.int64))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    settings = json.dumps(config).encode()
    settings += b" " * (-len(settings) % 4)
    data = bytes(i % 251 for i in range(offset))
    return bytes([len(settings) // 4]) + settings + struct.pack("<Q", len(text)) + text + data


def make_safetensors():
    folder = CORPUS / "safetensors"
    folder.mkdir(parents=True, exist_ok=True)
    dense = {"a.weight": ("BF16", [2, 32]), "b": ("F32", [3]), "c.weight": ("F16", [1, 4]), "e": ("F8_E4M3", [2])}
    (folder / "dense").write_bytes(safetensors(dense, {"model_type": "llama"}, {"format": "pt"}))
    for bits in (2, 3, 4, 5, 6, 8):
        parts = {"m.weight": ("U32", [1, bits * 2]), "m.scales": ("F16", [1, 1]), "m.biases": ("F16", [1, 1])}
        config = {"quantization": {"bits": 4, "group_size": 64, "m": {"bits": bits}}}
        (folder / f"affine{bits}").write_bytes(safetensors(parts, config, {"format": "mlx"}))
    stack = {"m.weight": ("U32", [2, 1, 4]), "m.scales": ("F32", [2, 1, 1]), "m.biases": ("F32", [2, 1, 1])}
    (folder / "experts").write_bytes(safetensors(stack, {"quantization": {"bits": 4, "group_size": 32}}))


def make_gguf():
    folder = CORPUS / "gguf"
    folder.mkdir(parents=True, exist_ok=True)
    for kind in ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"):
        quantization = gguf.GGMLQuantizationType[kind]
        elements, size = gguf.GGML_QUANT_SIZES[quantization]
        blocks = 1 if elements == 256 else 2
        writer = gguf.GGUFWriter(folder / kind.lower(), "llama")
        writer.add_block_count(1)
        writer.add_array("a", ["x", "yy"] if kind == "F32" else [1, 2])
        writer.add_token_list(["a", "b"])
        writer.add_token_scores([0.0, 1.0])
        raw = (np.arange(2 * blocks * size) % 251).astype(np.uint8).reshape(2, -1)
        writer.add_tensor("t.weight", raw, raw_dtype=quantization)
        if kind == "F16":
            writer.add_tensor("experts", np.zeros((2, 2, 4), np.float16))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


if __name__ == "__main__":
    make_safetensors()
    make_gguf()
