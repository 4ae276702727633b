"""The gated delta rule over whole sequences, forward and backward: a plain torch form that says what is meant, and Triton
kernels that make training affordable. One file, so that the two can be held against each other (check_gated_delta.py).

Shapes: q, k, v [B, T, H, 64] (k of unit length, q of unit length times 64^-1/2), decay [B, T, H] fp32 (natural logarithm,
<= 0; about -40 where a new document starts, which forgets the state), beta [B, T, H] fp32. T is a multiple of CHUNK.
Per token: S <- S e^decay; d = beta (v - S^T k); S <- S + k d^T; o = S^T q. Chunked as in families-a.md 1.3.
"""

import torch
import triton
import triton.language as tl

CHUNK = 32
DIM = 64


def recurrent(q, k, v, decay, beta):
    """Token by token in the inputs' precision: the definition."""
    batch, length, heads, dim = q.shape
    state = q.new_zeros(batch, heads, dim, dim)
    out = []
    for t in range(length):
        state = state * decay[:, t].exp()[..., None, None]
        delta = beta[:, t][..., None] * (v[:, t] - (state * k[:, t][..., None]).sum(-2))
        state = state + k[:, t][..., None] * delta[..., None, :]
        out.append((state * q[:, t][..., None]).sum(-2))
    return torch.stack(out, 1)


def chunked(q, k, v, summed, beta):
    """In torch, any device: `summed` is the running sum of the decay inside each chunk. Differentiable; the fallback."""
    batch, length, heads, dim = q.shape
    split = lambda x: x.float().view(batch, length // CHUNK, CHUNK, heads, -1).permute(0, 3, 1, 2, 4)
    q, k, v, summed, beta = split(q), split(k), split(v), split(summed[..., None])[..., 0], split(beta[..., None])
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    gamma = (summed[..., :, None] - summed[..., None, :]).masked_fill(~lower, float("-inf")).exp()
    system = (beta * (k @ k.mT) * gamma).tril(-1) + torch.eye(CHUNK, device=q.device)
    grown = summed.exp()[..., None]
    solved = torch.linalg.solve_triangular(system, torch.cat([beta * v, beta * grown * k], -1), upper=False)
    u, w = solved.split(dim, -1)
    scores = (q @ k.mT) * gamma
    state = q.new_zeros(batch, heads, dim, dim)
    out = []
    for c in range(length // CHUNK):
        fresh = u[:, :, c] - w[:, :, c] @ state
        out.append((q[:, :, c] * grown[:, :, c]) @ state + scores[:, :, c] @ fresh)
        last = summed[:, :, c, -1:]
        state = state * last[..., None].exp() + (k[:, :, c] * (last - summed[:, :, c]).exp()[..., None]).mT @ fresh
    return torch.stack(out, 2).permute(0, 2, 3, 1, 4).reshape(batch, length, heads, dim)


@triton.jit
def _dot(a, b, DOT: tl.constexpr):
    return tl.dot(a.to(DOT), b.to(DOT), out_dtype=tl.float32, input_precision="ieee")


@triton.jit
def _solve_kernel(k_ptr, summed_ptr, beta_ptr, solved_ptr, length, HEADS: tl.constexpr, C: tl.constexpr, D: tl.constexpr,
                  DOT: tl.constexpr):
    """solved = (I - A)^-1, A = -(beta k k^T Gamma) strictly lower; one program a chunk and head."""
    chunk, row = tl.program_id(0), tl.program_id(1)
    batch, head = row // HEADS, row % HEADS
    c, d = tl.arange(0, C), tl.arange(0, D)
    at = (batch * length + chunk * C + c) * HEADS + head
    k = tl.load(k_ptr + at[:, None] * D + d[None, :])
    summed, beta = tl.load(summed_ptr + at), tl.load(beta_ptr + at)
    strict = c[:, None] > c[None, :]
    gamma = tl.exp(tl.where(strict, summed[:, None] - summed[None, :], float("-inf")))
    a = -beta[:, None] * _dot(k, tl.trans(k), DOT) * gamma
    for i in range(1, C):
        this = tl.sum(tl.where(c[:, None] == i, a, 0.0), 0)
        this += tl.sum(this[:, None] * a, 0)
        a = tl.where(c[:, None] == i, this[None, :], a)
    a += tl.where(c[:, None] == c[None, :], 1.0, 0.0)
    place = (row * (length // C) + chunk) * C * C
    tl.store(solved_ptr + place + c[:, None] * C + c[None, :], a)


@triton.jit
def _forward_kernel(q_ptr, k_ptr, v_ptr, summed_ptr, beta_ptr, solved_ptr, out_ptr, states_ptr, length,
                    HEADS: tl.constexpr, C: tl.constexpr, D: tl.constexpr, DOT: tl.constexpr):
    row = tl.program_id(0)
    batch, head = row // HEADS, row % HEADS
    c, d = tl.arange(0, C), tl.arange(0, D)
    lower = c[:, None] >= c[None, :]
    state = tl.zeros((D, D), dtype=tl.float32)
    for chunk in range(0, length // C):
        at = (batch * length + chunk * C + c) * HEADS + head
        wide = at[:, None] * D + d[None, :]
        q, k, v = tl.load(q_ptr + wide), tl.load(k_ptr + wide), tl.load(v_ptr + wide)
        summed, beta = tl.load(summed_ptr + at), tl.load(beta_ptr + at)
        last = tl.sum(tl.where(c == C - 1, summed, 0.0), 0)
        place = row.to(tl.int64) * (length // C) + chunk
        solved = tl.load(solved_ptr + place * C * C + c[:, None] * C + c[None, :])
        tl.store(states_ptr + place * D * D + d[:, None] * D + d[None, :], state)
        grown = tl.exp(summed)
        u = _dot(solved, beta[:, None] * v.to(tl.float32), DOT)
        w = _dot(solved, (beta * grown)[:, None] * k.to(tl.float32), DOT)
        fresh = u - _dot(w, state, DOT)
        gamma = tl.exp(tl.where(lower, summed[:, None] - summed[None, :], float("-inf")))
        scores = _dot(q, tl.trans(k), DOT) * gamma
        out = _dot(q.to(tl.float32) * grown[:, None], state, DOT) + _dot(scores, fresh, DOT)
        tl.store(out_ptr + wide, out.to(out_ptr.dtype.element_ty))
        faded = k.to(tl.float32) * tl.exp(last - summed)[:, None]
        state = state * tl.exp(last) + _dot(tl.trans(faded), fresh, DOT)


@triton.jit
def _backward_kernel(q_ptr, k_ptr, v_ptr, summed_ptr, beta_ptr, solved_ptr, states_ptr, dout_ptr, dq_ptr, dk_ptr, dv_ptr,
                     dsummed_ptr, dbeta_ptr, length, HEADS: tl.constexpr, C: tl.constexpr, D: tl.constexpr,
                     DOT: tl.constexpr):
    row = tl.program_id(0)
    batch, head = row // HEADS, row % HEADS
    c, d = tl.arange(0, C), tl.arange(0, D)
    lower = c[:, None] >= c[None, :]
    strict = c[:, None] > c[None, :]
    dstate = tl.zeros((D, D), dtype=tl.float32)
    chunks = length // C
    for back in range(0, chunks):
        chunk = chunks - 1 - back
        at = (batch * length + chunk * C + c) * HEADS + head
        wide = at[:, None] * D + d[None, :]
        q, k = tl.load(q_ptr + wide).to(tl.float32), tl.load(k_ptr + wide).to(tl.float32)
        v, dout = tl.load(v_ptr + wide).to(tl.float32), tl.load(dout_ptr + wide).to(tl.float32)
        summed, beta = tl.load(summed_ptr + at), tl.load(beta_ptr + at)
        last = tl.sum(tl.where(c == C - 1, summed, 0.0), 0)
        place = row.to(tl.int64) * chunks + chunk
        solved = tl.load(solved_ptr + place * C * C + c[:, None] * C + c[None, :])
        state = tl.load(states_ptr + place * D * D + d[:, None] * D + d[None, :])
        grown, fade = tl.exp(summed), tl.exp(last - summed)
        gamma = tl.exp(tl.where(lower, summed[:, None] - summed[None, :], float("-inf")))
        scores = _dot(q, tl.trans(k), DOT) * gamma
        beta_v, beta_k = beta[:, None] * v, (beta * grown)[:, None] * k
        w = _dot(solved, beta_k, DOT)
        fresh = _dot(solved, beta_v, DOT) - _dot(w, state, DOT)
        # through o and the state's update
        dfresh = _dot(tl.trans(scores), dout, DOT) + _dot(k * fade[:, None], dstate, DOT)
        dscores = tl.where(lower, _dot(dout, tl.trans(fresh), DOT), 0.0)
        through_state = _dot(dout, tl.trans(state), DOT) * grown[:, None]
        dq = through_state + _dot(dscores * gamma, k, DOT)
        into_state = _dot(fresh, tl.trans(dstate), DOT) * fade[:, None]
        dk = into_state + _dot(tl.trans(dscores * gamma), q, DOT)
        weighed = dscores * scores
        faded = tl.sum(into_state * k, 1)
        dsummed = tl.sum(through_state * q, 1) + tl.sum(weighed, 1) - tl.sum(weighed, 0) - faded
        dlast = tl.sum(faded, 0) + tl.sum(tl.sum(state * dstate, 1), 0) * tl.exp(last)
        # through u and w
        dw = -_dot(dfresh, tl.trans(state), DOT)
        dstate = dstate * tl.exp(last) + _dot(tl.trans(q * grown[:, None]), dout, DOT) - _dot(tl.trans(w), dfresh, DOT)
        turned = tl.trans(solved)
        dsolved = _dot(dfresh, tl.trans(beta_v), DOT) + _dot(dw, tl.trans(beta_k), DOT)
        dbeta_v, dbeta_k = _dot(turned, dfresh, DOT), _dot(turned, dw, DOT)
        dbeta = tl.sum(dbeta_v * v, 1) + tl.sum(dbeta_k * k, 1) * grown
        dv = beta[:, None] * dbeta_v
        dk += (beta * grown)[:, None] * dbeta_k
        dsummed += tl.sum(dbeta_k * beta_k, 1)
        da = tl.where(strict, _dot(_dot(turned, dsolved, DOT), turned, DOT), 0.0)
        unscaled = -_dot(k, tl.trans(k), DOT) * gamma
        dbeta += tl.sum(da * unscaled, 1)
        moved = da * unscaled * beta[:, None]
        dsummed += tl.sum(moved, 1) - tl.sum(moved, 0)
        dproduct = -da * beta[:, None] * gamma
        dk += _dot(dproduct, k, DOT) + _dot(tl.trans(dproduct), k, DOT)
        dsummed += tl.where(c == C - 1, dlast, 0.0)
        tl.store(dq_ptr + wide, dq.to(dq_ptr.dtype.element_ty))
        tl.store(dk_ptr + wide, dk.to(dk_ptr.dtype.element_ty))
        tl.store(dv_ptr + wide, dv.to(dv_ptr.dtype.element_ty))
        tl.store(dsummed_ptr + at, dsummed)
        tl.store(dbeta_ptr + at, dbeta)


def _dot_type(tensor):
    return tl.bfloat16 if tensor.dtype == torch.bfloat16 else tl.float32


class GatedDelta(torch.autograd.Function):
    """(q, k, v, summed decay in each chunk, beta) -> o."""

    @staticmethod
    def forward(ctx, q, k, v, summed, beta):
        q, k, v, summed, beta = (x.contiguous() for x in (q, k, v, summed, beta))
        batch, length, heads, dim = q.shape
        assert dim == DIM and length % CHUNK == 0 and summed.dtype == beta.dtype == torch.float32
        chunks = length // CHUNK
        solved = torch.empty(batch * heads, chunks, CHUNK, CHUNK, dtype=torch.float32, device=q.device)
        states = torch.empty(batch * heads, chunks, dim, dim, dtype=torch.float32, device=q.device)
        out = torch.empty_like(q)
        shape = dict(HEADS=heads, C=CHUNK, D=dim, DOT=_dot_type(q))
        _solve_kernel[(chunks, batch * heads)](k, summed, beta, solved, length, **shape, num_warps=2)
        _forward_kernel[(batch * heads,)](q, k, v, summed, beta, solved, out, states, length, **shape, num_warps=4)
        ctx.save_for_backward(q, k, v, summed, beta, solved, states)
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, summed, beta, solved, states = ctx.saved_tensors
        batch, length, heads, dim = q.shape
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        dsummed, dbeta = torch.empty_like(summed), torch.empty_like(beta)
        _backward_kernel[(batch * heads,)](q, k, v, summed, beta, solved, states, dout.contiguous(), dq, dk, dv, dsummed,
                                           dbeta, length, HEADS=heads, C=CHUNK, D=dim, DOT=_dot_type(q), num_warps=4)
        return dq, dk, dv, dsummed, dbeta


def gated_delta(q, k, v, summed, beta):
    return GatedDelta.apply(q, k, v, summed, beta) if q.is_cuda else chunked(q, k, v, summed, beta).to(q.dtype)
