"""The demo model one token a row at a time, for the refill loop: it writes the drafters' training text and the evaluation's
replies, with the weights as they will be served (rounded to their codes)."""

import numpy as np
import torch
import torch.nn.functional as F

import decode_kernels
import model as demo
from refill import RefillLoop

compiled = torch.compile(dynamic=False, disable=not torch.cuda.is_available())


@compiled
def delta_step(h, fresh, tail, state, p, heads: int):
    """h [B, D]; fresh [B] true where a row starts; tail [B, 3, C]; state [B, heads, 64, 64] fp32."""
    keep = (~fresh)[:, None]
    u = demo.norm(h, p["input_layernorm.weight"])
    part = lambda name: F.linear(u, p[f"linear_attn.in_proj_{name}.weight"])
    qkv, z, b, a = part("qkv"), part("z"), part("b"), part("a")
    tail = torch.where(keep[..., None], tail, 0)
    rows = torch.cat([tail, qkv[:, None]], 1)
    out = (rows.float() * p["linear_attn.conv1d.weight"][:, 0].float().T).sum(1)
    q, k, v = F.silu(out).view(-1, 3 * heads, 64).split(heads, 1)
    unit = lambda x: x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
    q, k = unit(q) * 0.125, unit(k)
    decay = (-p["linear_attn.A_log"].exp() * F.softplus(a.float() + p["linear_attn.dt_bias"])).exp()
    state = state * (decay * keep)[..., None, None]
    delta = b.float().sigmoid()[..., None] * (v - (state * k[..., None]).sum(-2))
    state = state + k[..., None] * delta[..., None, :]
    o = (state * q[..., None]).sum(-2).to(h.dtype)
    gated = demo.norm(o, p["linear_attn.norm.weight"], 0.0).float() * F.silu(z.view(o.shape).float())
    h = h + F.linear(gated.to(h.dtype).flatten(1), p["linear_attn.out_proj.weight"])
    return demo.feed_forward(h, p), rows[:, 1:].contiguous(), state


@compiled
def attention_before(h, positions, p, heads: int, groups: int, dim: int, theta: float, rotary: int):
    u = demo.norm(h, p["input_layernorm.weight"])
    part = lambda name: F.linear(u, p[f"self_attn.{name}_proj.weight"])
    q, gate = part("q").view(-1, heads, 2 * dim).split(dim, -1)
    q = demo.rotate(demo.norm(q, p["self_attn.q_norm.weight"]), positions, theta, rotary)
    k = demo.norm(part("k").view(-1, groups, dim), p["self_attn.k_norm.weight"])
    return q, demo.rotate(k, positions, theta, rotary), part("v").view(-1, groups, dim), gate.contiguous()


@compiled
def attention_after(h, o, gate, p):
    return demo.attention_output_plain(h, o, gate, p)


class Student:
    def __init__(self, model, rows, longest):
        self.model, c = model, model.config
        device, dtype = model.table.device, model.table.dtype
        self.tails, self.states, self.k_caches, self.v_caches = {}, {}, {}, {}
        for i in range(c.layers):
            if c.is_full(i):
                shape = (rows, c.groups, longest, c.head_dim)
                self.k_caches[i] = torch.zeros(shape, device=device, dtype=dtype)
                self.v_caches[i] = torch.zeros(shape, device=device, dtype=dtype)
            else:
                self.tails[i] = torch.zeros(rows, 3, 3 * c.delta_heads * 64, device=device, dtype=dtype)
                self.states[i] = torch.zeros(rows, c.delta_heads, 64, 64, device=device)

    def step(self, tokens, positions):
        c = self.model.config
        h = F.embedding(tokens, self.model.table)
        fresh = positions == 0
        for i, p in enumerate(self.model.layers):
            if c.is_full(i):
                q, k, v, gate = attention_before(h, positions, p, *self.model.attention_shape())
                o = decode_kernels.attention(q, k, v, self.k_caches[i], self.v_caches[i], positions)
                h = attention_after(h, o, gate, p)
            else:
                h, tail, state = delta_step(h, fresh, self.tails[i], self.states[i], p, c.delta_heads)
                self.tails[i].copy_(tail)
                self.states[i].copy_(state)
        return F.linear(demo.norm(h, self.model.leaves["model.norm.weight"]), self.model.table)


def generate(model, prompts, temperatures, end_ids, longest, seconds, rows=4096, min_p=0.02, seed=0, say=None):
    """Token lists prompt + reply (end token included) by prompt index; None where the time ran out. Replies that reach
    `longest` are kept as they are, so that greedy text may be measured whole."""
    device = model.table.device
    width = max(map(len, prompts))
    table = np.full((len(prompts) + 1, width), end_ids[0], dtype=np.int32)
    lengths = np.full(len(prompts) + 1, width, dtype=np.int32)
    for i, ids in enumerate(prompts):
        table[i, :len(ids)], lengths[i] = ids, len(ids)
    warm = np.append(np.asarray(temperatures, dtype=np.float32), np.float32(1))
    put = lambda x: torch.from_numpy(x).to(device)
    with torch.no_grad():
        student = Student(model, rows, longest)
        loop = RefillLoop(student.step, rows, put(table), put(lengths), put(warm), end_ids, longest, min_p, seed)
        last = [0.0]

        def report(loop, steps, elapsed):
            if say and elapsed - last[0] > 10:
                last[0] = elapsed
                say(f"own text: {int(loop.drawn) / elapsed:.0f} tokens/s, {int((loop.ends != 0).sum())} of {len(prompts)}")

        loop.run(seconds, report)
    ends, tokens = loop.ends[:-1].abs().cpu().numpy(), loop.tokens[:-1].cpu().numpy()
    return [tokens[i, :ends[i]].tolist() if ends[i] else None for i in range(len(prompts))]
