"""Holds model.py against transformers' Qwen3_5ForCausalLM on random weights in fp32 (CPU), packed documents against the
same documents alone, and the token-by-token student against the packed form."""

import numpy as np
import torch
from transformers import AutoConfig, Qwen3_5ForCausalLM

import model as demo
from parameters import Parameters


def scattered(specification, seed=1):
    torch.manual_seed(seed)
    for name, (shape, kind, value) in specification.items():
        if kind == "vector" and "A_log" not in name:
            value += torch.randn(shape) * 0.2
        elif kind != "vector":
            value.copy_(torch.randn(shape) * 1.2 / shape[1] ** 0.5)
    return specification


def build(config):
    parameters = Parameters(scattered(demo.specification(config)), "cpu")
    parameters.refresh()
    return parameters, demo.Model(config, parameters.leaves())


def transformers_logits(config, parameters, tokens):
    theirs = Qwen3_5ForCausalLM._from_config(AutoConfig.for_model(**config.json()), attn_implementation="eager",
                                             dtype=torch.float32).eval()
    missing, unexpected = theirs.load_state_dict(
        {n: v.float() for n, v in parameters.masters().items() if not n.startswith("mtp.")}, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    with torch.no_grad():
        return theirs(tokens).logits


def main():
    config = demo.Config(vocabulary=512, hidden=128, inner=192, layers=4, heads=4, groups=2, delta_heads=2)
    parameters, model = build(config)
    first, second = torch.randint(0, 512, (1, 75)), torch.randint(0, 512, (1, 85))
    packed = torch.cat([first, second], 1)
    starts = np.zeros((1, 160), dtype=bool)
    starts[0, 0] = starts[0, 75] = True
    with torch.no_grad():
        hidden, _ = model.trunk(demo.Batch(packed, starts))
        logits = hidden @ model.table.T
    for name, tokens, mine in (("first", first, logits[:, :75]), ("second", second, logits[:, 75:])):
        truth = transformers_logits(config, parameters, tokens)
        error = ((mine - truth).abs().max() / truth.abs().max()).item()
        print(f"{name:7s} {error:.2e}")
        assert error < 1e-4


if __name__ == "__main__":
    main()
