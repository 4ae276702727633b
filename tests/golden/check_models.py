#!/usr/bin/env python3
"""Checks the golden files against the loaders of other projects, so that a mistake in our writers can't hide in files that
only we read: Hugging Face directories and GGUF files by transformers' own from_pretrained, MLX directories by mlx-lm. An
MTP head's oracle is checked against a one-layer model of transformers: its layer and final norm are a model's.

    python check_models.py [--models FOLDER] [CASE ...]
"""

import argparse
import dataclasses
import os
import shutil
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from safetensors.torch import load_file

import mtp_files
import mtp_oracle
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
        shutil.copytree(models / case.name, folder, ignore=shutil.ignore_patterns("dflash2", "mtp*.safetensors"))
        (folder / "expected.safetensors").unlink()
        loader = mlx_logits if case.storage == "mlx" else transformers_logits
        logits = loader(case, folder, expected["input_ids"])
    reference = expected["logits"].numpy()
    error = np.abs(logits - reference).max() / np.abs(reference).max()
    good = bool(error <= TOLERANCES[case.storage])
    print(f"{case.name:28} {error:.1e} {'ok' if good else 'DIFFERS'}", flush=True)
    return good


def check_head(case) -> bool:
    """The oracle's states against transformers' model of one full-attention layer with the head's weights."""
    head, text = mtp_files.seeded_head(case), case.text_config
    one = dataclasses.replace(case, config=text | {"num_hidden_layers": 1, "layer_types": ["full_attention"]})
    body = build_model(one).model
    state = {name.removeprefix("mtp."): value for name, value in head.items()}
    missing, _ = body.load_state_dict(state, strict=False)
    if [name for name in missing if name != "embed_tokens.weight"]:
        raise RuntimeError(f"missing {missing}")
    generator = torch.Generator().manual_seed(1)
    embed = torch.randn(text["vocab_size"], text["hidden_size"], generator=generator)
    hidden = torch.randn(case.length, text["hidden_size"], generator=generator)
    tokens = torch.randint(0, text["vocab_size"], (case.length,), generator=generator)
    oracle = mtp_oracle.Oracle(text, head | {"embed": embed})
    norm = lambda x, name: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + head[name])
    joined = torch.cat([norm(embed[tokens], "mtp.pre_fc_norm_embedding.weight"),
                        norm(hidden, "mtp.pre_fc_norm_hidden.weight")], dim=-1) @ head["mtp.fc.weight"].T
    with torch.no_grad():
        theirs = body(inputs_embeds=joined.unsqueeze(0), use_cache=False).last_hidden_state.squeeze(0)
        ours = oracle.states(hidden, tokens)
    error = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    print(f"{case.name + ' (head)':28} {error:.1e} {'ok' if error <= 1e-5 else 'DIFFERS'}", flush=True)
    return error <= 1e-5


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
                bad += bool(case.mtp) and not check_head(case)
            except Exception as error:  # a loader that can't read a file is a finding, and the other cases still count
                bad += 1
                print(f"{case.name:28} FAILED {type(error).__name__}: {str(error)[:300]}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
