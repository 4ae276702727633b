#!/usr/bin/env python3
"""Compares the CPU backend's logits of every golden checkpoint between two builds of bench/dump_logits, bit for bit.

The AArch64 build runs under qemu. NEON and x86-64 may differ where a result is denormal before its rounding
(docs/one-arithmetic.md), which no golden checkpoint meets.

usage: compare_logits.py DUMP_LOGITS_X86_64 DUMP_LOGITS_AARCH64
"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

EMULATOR = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]
MODELS = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/models"


def input_ids(case):
    """The prompt of a golden case, from its expected.safetensors."""
    data = (case / "expected.safetensors").read_bytes()
    header_bytes = struct.unpack_from("<Q", data)[0]
    entry = json.loads(data[8 : 8 + header_bytes])["input_ids"]
    begin, end = (8 + header_bytes + offset for offset in entry["data_offsets"])
    return struct.unpack_from(f"<{(end - begin) // 4}i", data, begin)


def logits(command, case, tokens, folder):
    output = folder / "logits"
    gguf = case / "model.gguf"
    model = gguf if gguf.exists() else case
    subprocess.run([*command, model, tokens, output], check=True, stdout=subprocess.DEVNULL)
    return output.read_bytes()


def main():
    here, there = [sys.argv[1]], [*EMULATOR, sys.argv[2]]
    cases = sorted(path.parent for path in MODELS.glob("*/expected.safetensors"))
    different = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        tokens = folder / "tokens"
        for case in cases:
            tokens.write_text(" ".join(map(str, input_ids(case))))
            mine, theirs = logits(here, case, tokens, folder), logits(there, case, tokens, folder)
            if mine != theirs or not mine:
                different.append(case.name)
                unequal = sum(mine[i : i + 4] != theirs[i : i + 4] for i in range(0, len(mine), 4))
                print(f"{case.name}: {unequal} of {len(mine) // 4} logits differ")
    print(f"logits of {len(cases) - len(different)} of {len(cases)} golden checkpoints have the same bits as on x86-64")
    return 1 if different or not cases else 0


sys.exit(main())
