#!/usr/bin/env python3
"""Makes the golden checkpoints: tests/golden/models/<case>/ with a tiny checkpoint and expected.safetensors, the values
that transformers computes for it in fp32 (README.md beside this file).

    python make_models.py [--out FOLDER] [CASE | FAMILY ...]      without names: all
"""

import argparse
import copy
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

import dflash_files
import gguf_files
import hf_files
import mlx_files
import mtp_files
import tokenizer_files
from cases import CASES
from weights import seeded_state

GREEDY_TOKENS = 16
# A choice of experts that hangs on less than this says nothing about an implementation.
ROUTER_GAP_MIN = 1e-4


def build_model(case):
    import transformers

    text = copy.deepcopy(case.text_config)
    classes = {
        "llama": ("LlamaConfig", "LlamaForCausalLM"), "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
        "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"), "qwen3_moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM"),
        "gemma3_text": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
        "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM"),
        "qwen3_5_moe": ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM"),
    }
    config_class, model_class = (getattr(transformers, name) for name in classes[case.family])
    config = config_class.from_dict(text)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = model_class(config).to(torch.float32).eval()
    if model.config._attn_implementation != "eager":
        raise RuntimeError("attention is not the eager one")
    return model


class Recorder:
    """Hidden state after each layer, before any final norm, and the routers' choices."""

    def __init__(self, model):
        self.hidden, self.experts, self.gaps, self.handles = {}, {}, [], []
        for index, layer in enumerate(model.model.layers):
            self.handles.append(layer.register_forward_hook(self.layer_hook(index)))
            gate = getattr(layer.mlp, "gate", None)
            if gate is not None:
                self.handles.append(gate.register_forward_hook(self.router_hook(index)))

    def layer_hook(self, index):
        def hook(_module, _inputs, output):
            self.hidden[index] = (output[0] if isinstance(output, tuple) else output).squeeze(0).clone()
        return hook

    def router_hook(self, index):
        def hook(_module, _inputs, output):
            logits, _, chosen = output
            self.experts[index] = chosen.to(torch.int32).clone()
            ranked = torch.softmax(logits.float(), dim=-1).sort(dim=-1, descending=True).values
            slots = chosen.shape[-1]
            self.gaps.append((ranked[:, :slots] - ranked[:, 1:slots + 1]).min().item())
        return hook

    def remove(self):
        for handle in self.handles:
            handle.remove()


def expected_values(case, model) -> dict:
    generator = torch.Generator().manual_seed(1000 + case.seed)
    ids = torch.randint(0, case.text_config["vocab_size"], (1, case.length), generator=generator)
    recorder = Recorder(model)
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits.squeeze(0)
    recorder.remove()
    if recorder.gaps and min(recorder.gaps) < ROUTER_GAP_MIN:
        raise ArithmeticError(f"router gap {min(recorder.gaps):.1e}")
    sequence = ids
    with torch.no_grad():
        for _ in range(GREEDY_TOKENS):
            next_id = model(input_ids=sequence, use_cache=False).logits[0, -1].argmax()
            sequence = torch.cat([sequence, next_id.view(1, 1)], dim=1)
    values = {
        "input_ids": ids.squeeze(0).to(torch.int32),
        "logits": logits.float(),
        "hidden": torch.stack([recorder.hidden[i] for i in sorted(recorder.hidden)]).float(),
        "greedy_ids": sequence[0, case.length:].to(torch.int32),
    }
    if recorder.experts:
        values["expert_layers"] = torch.tensor(sorted(recorder.experts), dtype=torch.int32)
        values["expert_ids"] = torch.stack([recorder.experts[i] for i in sorted(recorder.experts)])
    return values


def bf16_model(case, seen: dict):
    """transformers' own bf16 model of the same weights."""
    model = build_model(case)
    model.load_state_dict(seen, strict=False)
    model.tie_weights()
    for parameter in model.parameters():  # not the buffers: transformers keeps RoPE's frequencies in fp32
        parameter.data = parameter.data.to(torch.bfloat16)
    return model


def bf16_error(model, values: dict) -> torch.Tensor:
    """Largest and root-mean-square error of the logits of that model's run: what a bf16 backend is measured by."""
    with torch.no_grad():
        logits = model(input_ids=values["input_ids"].long().unsqueeze(0), use_cache=False).logits.squeeze(0).float()
    difference = logits - values["logits"]
    return torch.stack([difference.abs().max(), difference.square().mean().sqrt()])


def write_checkpoint(case, state: dict, folder: Path) -> dict:
    if case.storage == "gguf":
        return gguf_files.write(case, state, folder, tokenizer_files.for_gguf(case))
    if case.tokenizer:
        tokenizer_files.write_hugging_face(case, folder)
    return (mlx_files if case.storage == "mlx" else hf_files).write(case, state, folder)


def make(case, out: Path) -> None:
    folder = out / case.name
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if old.is_file():
            old.unlink()
    model = build_model(case)
    shapes = dict(model.state_dict())
    if case.text_config["tie_word_embeddings"]:
        shapes.pop("lm_head.weight", None)
    for case.seed in range(case.seed, case.seed + 100):
        head = mtp_files.seeded_head(case) if case.mtp else {}
        inside = head if case.mtp == "model.safetensors" else {}
        seen = write_checkpoint(case, seeded_state(case.family, shapes, case.seed) | inside, folder)
        if case.mtp and not inside:
            head = mtp_files.write_side_file(case, head, folder)
        elif inside:
            head = {name: seen.pop(name) for name in inside}
        missing, unexpected = model.load_state_dict(seen, strict=False)
        if unexpected or any(name != "lm_head.weight" for name in missing):
            raise RuntimeError(f"{case.name}: missing {missing}, unexpected {unexpected}")
        model.tie_weights()
        try:
            values = expected_values(case, model)
            rough = bf16_model(case, seen)
            if case.mtp:
                values |= mtp_files.expected_values(case, model, rough, head, values)
            break
        except ArithmeticError:
            continue
    else:
        raise RuntimeError(f"{case.name}: no seed gives clear router choices")
    values["bf16_error"] = bf16_error(rough, values)
    if not all(torch.isfinite(value).all() for value in values.values()):
        raise RuntimeError(f"{case.name}: values aren't finite")
    save_file({name: value.contiguous() for name, value in values.items()}, folder / "expected.safetensors",
              metadata={"seed": str(case.seed), "family": case.family})
    if case.drafters:
        dflash_files.make(case, 2, model, rough, values, folder / "dflash2")
        dflash_files.make(case, 1, model, rough, values, out.parent / "drafters" / f"{case.name}_dflash")
    for path in folder.iterdir():
        if path.is_file():
            path.chmod(0o644)
    size = sum(path.stat().st_size for path in folder.iterdir())
    spread = values["logits"].abs().max().item()
    print(f"{case.name:28} seed {case.seed:3} {size / 1024:7.0f} KiB  logits up to {spread:5.2f}  bf16 error "
          f"{values['bf16_error'][0]:.3f}, rms {values['bf16_error'][1]:.4f}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="cases or families")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "models")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    known = {case.name for case in CASES} | {case.family for case in CASES}
    unknown = [name for name in arguments.names if name not in known]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; known: {', '.join(sorted(known))}", file=sys.stderr)
        return 2
    for case in CASES:
        if not arguments.names or case.name in arguments.names or case.family in arguments.names:
            make(case, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
