#!/usr/bin/env python3
"""Checks the golden files against the loaders of other projects, so that a mistake in our writers can't hide in files that
only we read: Hugging Face directories and GGUF files by transformers' own from_pretrained, MLX directories by mlx-lm.

    python check_models.py [--models FOLDER] [CASE ...]
"""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from safetensors.torch import load_file

from cases import CASES
from make_models import build_model

# mlx-lm rounds q and k to the weights' dtype and Gemma's embedding factor to bf16, and puts the l2 norm's epsilon elsewhere.
TOLERANCES = {"hf": 1e-5, "gguf": 1e-5, "mlx": 1e-3}


def transformers_logits(case, folder: Path, ids):
    from transformers import AutoModelForCausalLM

    extra = {}
    if case.storage == "gguf":
        # Its reading of GGUF metadata drops what it doesn't know (head sizes, rope factors, Gemma's scale), so it gets the
        # configuration; names, row orders, block formats and folded norms are what is checked here.
        config = build_model(case).config
        extra = {"gguf_file": "model.gguf", "config": config}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **extra).eval()
    with torch.no_grad():
        return model(input_ids=ids.long().unsqueeze(0), use_cache=False).logits.squeeze(0).float().numpy()


def mlx_logits(case, folder: Path, ids):
    import mlx.core as mx
    from mlx_lm.utils import load_model

    model, _ = load_model(folder, lazy=False)
    model.set_dtype(mx.float32)
    return np.array(model(mx.array(ids.numpy())[None])[0].astype(mx.float32))


def check(case, models: Path) -> bool:
    expected = load_file(models / case.name / "expected.safetensors")
    with tempfile.TemporaryDirectory() as scratch:  # without expected.safetensors: some loaders take every file
        folder = Path(scratch) / case.name
        shutil.copytree(models / case.name, folder)
        (folder / "expected.safetensors").unlink()
        loader = mlx_logits if case.storage == "mlx" else transformers_logits
        logits = loader(case, folder, expected["input_ids"])
    reference = expected["logits"].numpy()
    error = np.abs(logits - reference).max() / np.abs(reference).max()
    good = bool(error <= TOLERANCES[case.storage])
    print(f"{case.name:28} {error:.1e} {'ok' if good else 'DIFFERS'}", flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--models", type=Path, default=Path(__file__).parent / "models")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    bad = 0
    for case in CASES:
        if not arguments.names or case.name in arguments.names:
            try:
                bad += not check(case, arguments.models)
            except Exception as error:  # a loader that can't read a file is a finding, and the other cases still count
                bad += 1
                print(f"{case.name:28} FAILED {type(error).__name__}: {str(error)[:300]}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
