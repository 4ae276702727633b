"""Holds the three forms of the gated delta rule against each other, gradients included. On a GPU it checks the compiled
kernels in fp32 and bf16; without one, run it with TRITON_INTERPRET=1: the same kernels, interpreted."""

import sys

import torch

import gated_delta as rule


def inputs(batch, length, heads, dtype, device, seed=0):
    torch.manual_seed(seed)
    unit = lambda x: x / x.norm(dim=-1, keepdim=True)
    shared = torch.randn(batch, 1, heads, rule.DIM, dtype=torch.float64)  # keys of one sentence resemble each other
    q = unit(torch.randn(batch, length, heads, rule.DIM, dtype=torch.float64)) * rule.DIM**-0.5
    k = unit(torch.randn(batch, length, heads, rule.DIM, dtype=torch.float64) + 1.5 * shared)
    v = torch.randn(batch, length, heads, rule.DIM, dtype=torch.float64)
    decay = -torch.rand(batch, length, heads, dtype=torch.float64) * 0.3
    decay[:, length // 3] = -40.0
    beta = torch.rand(batch, length, heads, dtype=torch.float64)
    return [x.to(device) for x in (q, k, v, decay, beta)], torch.randn(batch, length, heads, rule.DIM, dtype=torch.float64).to(device)


def summed_decay(decay):
    batch, length, heads = decay.shape
    return decay.view(batch, -1, rule.CHUNK, heads).cumsum(2).view(batch, length, heads)


def run(form, values, grad, dtype, summed):
    gates = torch.float32 if dtype == torch.bfloat16 else dtype
    leaves = [x.to(dtype if i < 3 else gates).detach().clone().requires_grad_() for i, x in enumerate(values)]
    q, k, v, decay, beta = leaves
    out = form(q, k, v, summed_decay(decay) if summed else decay, beta)
    out.backward(grad.to(out.dtype))
    return [out.detach()] + [x.grad for x in leaves]


def compare(label, mine, truth, bound):
    worst = 0.0
    for name, a, b in zip(("o", "dq", "dk", "dv", "ddecay", "dbeta"), mine, truth):
        error = ((a.double() - b).norm() / b.norm()).item()
        worst = max(worst, error)
        print(f"{label:10s} {name:7s} {error:.2e}")
    if not worst < bound:
        sys.exit(f"{label}: {worst} is above {bound}")


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    values, grad = inputs(2, 256 if device == "cuda" else 96, 2, torch.float64, device)
    truth = run(rule.recurrent, values, grad, torch.float64, False)
    compare("chunked", run(rule.chunked, values, grad, torch.float32, True), truth, 1e-4)
    kernels = rule.GatedDelta.apply
    compare("kernels", run(kernels, values, grad, torch.float32, True), truth, 1e-3)
    if device == "cuda":
        compare("bf16", run(kernels, values, grad, torch.bfloat16, True), truth, 3e-2)


if __name__ == "__main__":
    main()
