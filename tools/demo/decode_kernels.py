"""Two Triton kernels for batched generation: attention of one new token a row over that row's own cache length, and a draw
from the logits. They keep the whole decoding step free of host decisions, so that a CUDA graph can replay it."""

import os

import torch
import torch.nn.functional as F
import triton
import triton.language as tl


def runs_kernels(tensor):
    return tensor.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"


def attention_in_torch(q, k, v, k_cache, v_cache, positions):
    rows = torch.arange(q.shape[0])
    k_cache[rows, :, positions.long()], v_cache[rows, :, positions.long()] = k, v
    mask = (torch.arange(k_cache.shape[2]) <= positions[:, None])[:, None, None]
    shared = lambda x: x.repeat_interleave(q.shape[1] // k_cache.shape[1], 1)
    return F.scaled_dot_product_attention(q[:, :, None], shared(k_cache), shared(v_cache), attn_mask=mask)[:, :, 0]


def draw_in_torch(logits, temperatures, log_min_p):
    share = (logits - logits.amax(1, keepdim=True)).float() / temperatures.clamp(min=1e-4)[:, None]
    noise = -(-torch.rand_like(share).clamp(min=1e-9).log()).log()
    sampled = torch.where(share >= log_min_p, share + noise, float("-inf"))
    return torch.where(temperatures[:, None] > 0, sampled, share).argmax(1).int()


@triton.jit
def _attention_kernel(q_ptr, k_ptr, v_ptr, k_cache_ptr, v_cache_ptr, position_ptr, out_ptr, scale, length,
                      GROUPS: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    row, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    head, d, t = tl.arange(0, 16), tl.arange(0, D), tl.arange(0, BLOCK)
    position = tl.load(position_ptr + row)
    mine = ((row * GROUPS + group) * SHARED + head[:, None]) * D + d[None, :]
    q = tl.load(q_ptr + mine, mask=head[:, None] < SHARED, other=0.0)
    k_new = tl.load(k_ptr + (row * GROUPS + group) * D + d)
    v_new = tl.load(v_ptr + (row * GROUPS + group) * D + d)
    base = (row * GROUPS + group) * length * D
    tl.store(k_cache_ptr + base + position * D + d, k_new)
    tl.store(v_cache_ptr + base + position * D + d, v_new)
    top = tl.sum(q.to(tl.float32) * k_new.to(tl.float32)[None, :], 1) * scale
    total = tl.full((16,), 1.0, tl.float32)
    out = tl.zeros((16, D), tl.float32) + v_new.to(tl.float32)[None, :]
    for start in range(0, position, BLOCK):
        seen = start + t < position
        place = base + (start + t)[:, None] * D + d[None, :]
        k = tl.load(k_cache_ptr + place, mask=seen[:, None], other=0.0)
        v = tl.load(v_cache_ptr + place, mask=seen[:, None], other=0.0)
        score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        score = tl.where(seen[None, :], score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        share = tl.exp(score - higher[:, None])
        fade = tl.exp(top - higher)
        total = total * fade + tl.sum(share, 1)
        out = out * fade[:, None] + tl.dot(share.to(v.dtype), v, input_precision="ieee")
        top = higher
    out = out / total[:, None]
    tl.store(out_ptr + mine, out.to(out_ptr.dtype.element_ty), mask=head[:, None] < SHARED)


def attention(q, k, v, k_cache, v_cache, positions):
    """q [B, H, D], k and v [B, G, D] of the new token, caches [B, G, T, D] (written at positions [B] int32) -> [B, H, D]."""
    rows, heads, dim = q.shape
    groups, length = k_cache.shape[1:3]
    if not runs_kernels(q):
        return attention_in_torch(q, k, v, k_cache, v_cache, positions)
    out = torch.empty_like(q)
    _attention_kernel[(rows, groups)](q.contiguous(), k.contiguous(), v.contiguous(), k_cache, v_cache, positions, out,
                                      dim**-0.5, length, GROUPS=groups, SHARED=heads // groups, D=dim, BLOCK=64,
                                      num_warps=4)
    return out


@triton.jit
def _draw_kernel(logits_ptr, temperature_ptr, counter_ptr, out_ptr, log_min_p, vocabulary, stride, seed,
                 BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    temperature = tl.load(temperature_ptr + row)
    counter = tl.load(counter_ptr)
    highest = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, vocabulary, BLOCK):
        inside = start + i < vocabulary
        value = tl.load(logits_ptr + row * stride + start + i, mask=inside, other=float("-inf")).to(tl.float32)
        highest = tl.maximum(highest, value)
    top = tl.max(highest, 0)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    where = tl.full((BLOCK,), 0, tl.int32)
    for start in range(0, vocabulary, BLOCK):
        inside = start + i < vocabulary
        value = tl.load(logits_ptr + row * stride + start + i, mask=inside, other=float("-inf")).to(tl.float32)
        share = (value - top) / tl.maximum(temperature, 1e-4)
        uniform = tl.rand(seed + counter, (row * vocabulary + start + i).to(tl.int32))
        noise = -tl.log(-tl.log(tl.maximum(uniform, 1e-9)) + 1e-9)
        score = tl.where(temperature > 0, tl.where(share >= log_min_p, share + noise, float("-inf")), share)
        better = score > best
        where = tl.where(better, start + i, where)
        best = tl.where(better, score, best)
    choice = tl.min(tl.where(best == tl.max(best, 0), where, vocabulary), 0)
    tl.store(out_ptr + row, choice)


def draw(logits, temperatures, counter, log_min_p, seed=0):
    """logits [B, V], temperatures [B] fp32 (0: argmax), counter [1] int32 -> tokens [B] int32."""
    rows, vocabulary = logits.shape
    if not runs_kernels(logits):
        return draw_in_torch(logits, temperatures, log_min_p)
    out = torch.empty(rows, dtype=torch.int32, device=logits.device)
    _draw_kernel[(rows,)](logits, temperatures, counter, out, log_min_p, vocabulary, logits.stride(0), seed, BLOCK=2048,
                          num_warps=4)
    return out
