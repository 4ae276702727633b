"""Writes trained masters as Hugging Face directories: the model in shards of at most 15 MiB (what comes back from the lent
machine is limited to 16 MiB a file), the DFlash2 drafter in one file. bf16, A_log in fp32, as released files have it."""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

import model as demo
from drafter import DrafterConfig

SHARD_BYTES = 15 * 1000 * 1000


def stored(name, value):
    return value.detach().float().cpu() if name.endswith("A_log") else value.detach().bfloat16().cpu().contiguous()


def write_shards(tensors, folder):
    shards, used = [{}], 0
    for name, value in tensors.items():
        size = value.numel() * value.element_size()
        if used + size > SHARD_BYTES and shards[-1]:
            shards.append({})
            used = 0
        shards[-1][name] = value
        used += size
    where = {}
    for n, shard in enumerate(shards):
        file = f"model-{n + 1:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        where |= {name: file for name in shard}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}, indent=1))


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--model", type=Path, required=True)
    flags.add_argument("--drafter", type=Path)
    flags.add_argument("--tokenizer", type=Path, required=True)
    flags.add_argument("--out", type=Path, required=True)
    flags.add_argument("--config", default="{}")
    options = flags.parse_args()
    config = demo.Config(**json.loads(options.config))
    options.out.mkdir(parents=True, exist_ok=True)
    tensors = {name: stored(name, value) for name, value in torch.load(options.model, map_location="cpu").items()}
    write_shards(tensors, options.out)
    tokenizer = Tokenizer.from_file(str(options.tokenizer))
    ends = [tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")]
    (options.out / "config.json").write_text(json.dumps(config.json() | {"eos_token_id": ends[0], "pad_token_id": ends[1]}, indent=2) + "\n")
    if options.drafter:
        folder = options.out / "dflash2"
        folder.mkdir(exist_ok=True)
        save_file({name: stored(name, value) for name, value in torch.load(options.drafter, map_location="cpu").items()},
                  folder / "model.safetensors", metadata={"format": "pt"})
        drafter = DrafterConfig().json(config, tokenizer.token_to_id("<|mask|>"))
        (folder / "config.json").write_text(json.dumps(drafter, indent=2) + "\n")


if __name__ == "__main__":
    main()
