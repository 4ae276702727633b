"""MTP heads beside or inside a golden checkpoint: their seeded weights, how files keep them, and the values expected."""

import torch
from safetensors.torch import save_file

import mlx_files
import mtp_oracle

CHAIN = 3  # levels after the last pair


def seeded_head(case) -> dict:
    generator = torch.Generator().manual_seed(5000 + case.seed)
    state = {}
    for name, shape in sorted(mtp_oracle.shapes(case.text_config).items()):
        noise = torch.randn(shape, generator=generator)
        spread = 0.2 if "norm" in name else (2.5 if name.endswith("mlp.gate.weight") else 1.3) / shape[-1] ** 0.5
        state[name] = noise * spread
    return state


def write_side_file(case, state: dict, folder) -> dict:
    """`mtp-4bit.safetensors`: MLX affine with the norms' +1 folded, names "mtp.*". `mtp.safetensors`: BF16 as the vendor
    stores them, bare names. Returns the values that a loader sees, norms zero-centred."""
    stored, seen = {}, {}
    if case.mtp == "mtp.safetensors":
        for name, value in state.items():
            stored[name.removeprefix("mtp.")] = value.to(torch.bfloat16)
            seen[name] = value.to(torch.bfloat16).float()
        save_file(stored, folder / case.mtp, metadata={"format": "pt"})
        return seen
    for name, value in state.items():
        if "norm" in name:
            kept = (value + 1.0).to(torch.bfloat16)
            stored[name], seen[name] = kept, kept.float() - 1.0
            continue
        parts, seen[name] = mlx_files.quantise(value, 4, 64, torch.bfloat16)
        stored |= {f"{name.removesuffix('.weight')}.{part}": tensor for part, tensor in parts.items()}
    save_file(stored, folder / case.mtp, metadata={"format": "mlx"})
    return seen


def expected_values(case, model, bf16_model, head: dict, values: dict) -> dict:
    """`head`: what a loader sees of the MTP tensors; `bf16_model`: transformers' own bf16 run, whose error the head's
    compounds."""
    text, ids = case.text_config, values["input_ids"].long()
    tokens = torch.cat([ids[1:], values["greedy_ids"][:1].long()])

    def run(of, dtype, chained=None):
        with torch.no_grad():
            hidden = of.model(input_ids=ids.unsqueeze(0), use_cache=False).last_hidden_state.squeeze(0)
            weights = head | {"embed": of.get_input_embeddings().weight.detach(),
                              "head": of.get_output_embeddings().weight.detach()}
            return mtp_oracle.run(text, weights, hidden, tokens, CHAIN, dtype, chained)

    logits, levels, fed = run(model, torch.float32)
    rough_logits, rough_levels, _ = run(bf16_model, torch.bfloat16, fed)
    difference = torch.cat([rough_logits - logits, rough_levels - levels])
    return {"mtp_tokens": tokens.to(torch.int32), "mtp_logits": logits, "mtp_chain_tokens": fed,
            "mtp_chain_logits": levels,
            "mtp_bf16_error": torch.stack([difference.abs().max(), difference.square().mean().sqrt()])}
