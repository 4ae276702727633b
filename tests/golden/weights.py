"""Seeded weights for a tiny model: every parameter is overwritten, because the values a model class initialises with hide
errors (zero-centred norms at 0, dt_bias at 1; families-a.md section 9.1)."""

import math

import torch


def is_zero_centred(family: str, name: str) -> bool:
    """Norms that multiply by 1 + weight."""
    if family in ("qwen3_5", "qwen3_5_moe"):
        return name.endswith("norm.weight") and "linear_attn.norm" not in name
    return family == "gemma3_text" and name.endswith("norm.weight")


def draw(family: str, name: str, shape, generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(tuple(shape), generator=generator, dtype=torch.float32)
    if name.endswith("norm.weight"):
        return noise * 0.2 + (0.0 if is_zero_centred(family, name) else 1.0)
    if name.endswith("A_log"):
        return noise * 0.8
    if name.endswith("dt_bias"):
        return noise
    if name.endswith("conv1d.weight"):
        return noise * 0.5
    if name.endswith(".bias"):
        return noise * 0.3
    if name.endswith("embed_tokens.weight"):
        return noise * (1.0 / math.sqrt(shape[-1]) if family == "gemma3_text" else 0.3)
    if name.endswith("mlp.gate.weight"):  # router: spread out, so that no choice hangs on rounding
        return noise * (2.5 / math.sqrt(shape[-1]))
    return noise * (1.3 / math.sqrt(shape[-1]))


def seeded_state(family: str, state: dict, seed: int) -> dict:
    generator = torch.Generator().manual_seed(seed)
    return {name: draw(family, name, state[name].shape, generator) for name in sorted(state)}
