"""The demo model in plain torch: a `qwen3_5` decoder with its MTP layer (families-a.md 1), over packed documents. The
checkpoint's names are the parameters' names. Functions between the attention kernels are pure, so that each compiles once
and serves every layer. check_model.py holds it against transformers' class."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F

from gated_delta import CHUNK, gated_delta

EPSILON = 1e-6
FORGET = -40.0  # log decay at a document's start
torch._dynamo.config.recompile_limit = 64
on_gpu = torch.cuda.is_available()
compiled = torch.compile(dynamic=False, disable=not on_gpu)


@dataclass
class Config:
    vocabulary: int = 8192
    hidden: int = 384
    inner: int = 1024
    layers: int = 8
    heads: int = 6
    groups: int = 2
    head_dim: int = 64
    delta_heads: int = 6  # key and value heads of Gated DeltaNet, 64 wide
    rope_theta: float = 10000.0
    rotary: int = 16
    context: int = 4096
    taps: list = field(default_factory=lambda: [1, 3, 5, 6])

    def is_full(self, layer):
        return layer % 4 == 3

    def json(self):
        """config.json as the family's files have it."""
        kinds = ["full_attention" if self.is_full(i) else "linear_attention" for i in range(self.layers)]
        return {
            "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "vocab_size": self.vocabulary,
            "hidden_size": self.hidden, "intermediate_size": self.inner, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.groups, "head_dim": self.head_dim,
            "hidden_act": "silu", "max_position_embeddings": self.context, "rms_norm_eps": EPSILON,
            "tie_word_embeddings": True, "attention_bias": False, "attn_output_gate": True,
            "full_attention_interval": 4, "layer_types": kinds, "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 64, "linear_value_head_dim": 64, "linear_num_key_heads": self.delta_heads,
            "linear_num_value_heads": self.delta_heads, "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1,
            "mtp_use_dedicated_embeddings": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta,
                                "partial_rotary_factor": self.rotary / self.head_dim,
                                "mrope_section": [self.rotary // 2 - 4, 2, 2], "mrope_interleaved": True},
            "dtype": "bfloat16",
        }


def specification(config, seed=0):
    """name -> (shape, kind, initial value)."""
    torch.manual_seed(seed)
    found = {}
    width, inner, deep = config.hidden, config.inner, 0.02 / math.sqrt(2 * config.layers)

    def matrix(name, rows, columns, spread=0.02, kind="matrix4"):
        found[name] = ((rows, columns), kind, torch.randn(rows, columns) * spread)

    def vector(name, value):
        found[name] = (tuple(value.shape), "vector", value)

    def feed_forward(base):
        vector(base + "post_attention_layernorm.weight", torch.zeros(width))
        matrix(base + "mlp.gate_proj.weight", inner, width)
        matrix(base + "mlp.up_proj.weight", inner, width)
        matrix(base + "mlp.down_proj.weight", width, inner, deep)

    def attention(base):
        vector(base + "input_layernorm.weight", torch.zeros(width))
        matrix(base + "self_attn.q_proj.weight", 2 * config.heads * config.head_dim, width)
        matrix(base + "self_attn.k_proj.weight", config.groups * config.head_dim, width)
        matrix(base + "self_attn.v_proj.weight", config.groups * config.head_dim, width)
        matrix(base + "self_attn.o_proj.weight", width, config.heads * config.head_dim, deep)
        vector(base + "self_attn.q_norm.weight", torch.zeros(config.head_dim))
        vector(base + "self_attn.k_norm.weight", torch.zeros(config.head_dim))
        feed_forward(base)

    def delta(base):
        heads, channels = config.delta_heads, 3 * config.delta_heads * 64
        vector(base + "input_layernorm.weight", torch.zeros(width))
        matrix(base + "linear_attn.in_proj_qkv.weight", channels, width)
        matrix(base + "linear_attn.in_proj_z.weight", heads * 64, width)
        matrix(base + "linear_attn.in_proj_b.weight", heads, width, kind="matrix8")
        matrix(base + "linear_attn.in_proj_a.weight", heads, width, kind="matrix8")
        vector(base + "linear_attn.conv1d.weight", (torch.rand(channels, 1, 4) - 0.5))
        vector(base + "linear_attn.A_log", torch.empty(heads).uniform_(1, 16).log())
        step = torch.exp(torch.rand(heads) * (math.log(0.1) - math.log(0.001)) + math.log(0.001))
        vector(base + "linear_attn.dt_bias", step + torch.log(-torch.expm1(-step)))
        vector(base + "linear_attn.norm.weight", torch.ones(64))
        matrix(base + "linear_attn.out_proj.weight", width, heads * 64, deep)
        feed_forward(base)

    matrix("model.embed_tokens.weight", config.vocabulary, width, kind="matrix8")
    for layer in range(config.layers):
        (attention if config.is_full(layer) else delta)(f"model.layers.{layer}.")
    vector("model.norm.weight", torch.zeros(width))
    vector("mtp.pre_fc_norm_embedding.weight", torch.zeros(width))
    vector("mtp.pre_fc_norm_hidden.weight", torch.zeros(width))
    matrix("mtp.fc.weight", width, 2 * width)
    attention("mtp.layers.0.")
    vector("mtp.norm.weight", torch.zeros(width))
    return found


def norm(x, weight, shift=1.0):
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON) * (shift + weight.float())).to(x.dtype)


def rotate(x, positions, theta, rotary):
    """x [..., heads, dim], positions [...]: the first `rotary` dims turn, in halves."""
    half = rotary // 2
    turn = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = positions.float()[..., None, None] * turn
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., :half].float(), x[..., half:rotary].float()
    return torch.cat([(a * cos - b * sin).to(x.dtype), (b * cos + a * sin).to(x.dtype), x[..., rotary:]], -1)


def delta_inputs(h, ages, p, heads):
    """p: the layer's parameters by short name. h [B, T, D] -> q, k, v [B, T, heads, 64], summed decay, beta, z."""
    batch, length, _ = h.shape
    u = norm(h, p["input_layernorm.weight"])
    rows = [p[f"linear_attn.in_proj_{part}.weight"] for part in ("qkv", "z", "b", "a")]
    pad = (-2 * heads) % 8
    mixed = F.linear(u, torch.cat(rows + [rows[0].new_zeros(pad, u.shape[-1])]))
    width = heads * 64
    qkv, z, b, a = mixed[..., :mixed.shape[-1] - pad].split([3 * width, width, heads, heads], -1)
    weight = p["linear_attn.conv1d.weight"][:, 0].float()
    out = qkv.float() * weight[:, 3]
    for back in (1, 2, 3):
        earlier = F.pad(qkv, (0, 0, back, 0))[:, :length].float()
        out = out + torch.where((ages >= back)[..., None], earlier, 0.0) * weight[:, 3 - back]
    q, k, v = F.silu(out).view(batch, length, 3 * heads, 64).split(heads, 2)
    unit = lambda x: x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
    beta = b.float().sigmoid()
    decay = -p["linear_attn.A_log"].exp() * F.softplus(a.float() + p["linear_attn.dt_bias"])
    decay = torch.where((ages == 0)[..., None], FORGET, decay)
    summed = decay.view(batch, length // CHUNK, CHUNK, heads).cumsum(2).view(batch, length, heads)
    return (unit(q) * 0.125).to(h.dtype), unit(k).to(h.dtype), v.to(h.dtype), summed, beta, z


def delta_output(h, o, z, p):
    gated = norm(o, p["linear_attn.norm.weight"], 0.0).float() * F.silu(z.reshape(o.shape).float())
    return feed_forward(h + F.linear(gated.to(h.dtype).flatten(2), p["linear_attn.out_proj.weight"]), p)


def feed_forward(h, p):
    u = norm(h, p["post_attention_layernorm.weight"])
    gate, up = F.linear(u, torch.cat([p["mlp.gate_proj.weight"], p["mlp.up_proj.weight"]])).chunk(2, -1)
    return h + F.linear(F.silu(gate) * up, p["mlp.down_proj.weight"])


def attention_inputs(h, positions, p, heads, groups, dim, theta, rotary):
    shape = h.shape[:-1]
    u = norm(h, p["input_layernorm.weight"])
    rows = torch.cat([p[f"self_attn.{part}_proj.weight"] for part in "qkv"])
    q, k, v = F.linear(u, rows).split([2 * heads * dim, groups * dim, groups * dim], -1)
    q, gate = q.view(*shape, heads, 2 * dim).split(dim, -1)
    q = rotate(norm(q, p["self_attn.q_norm.weight"]), positions, theta, rotary)
    k = rotate(norm(k.view(*shape, groups, dim), p["self_attn.k_norm.weight"]), positions, theta, rotary)
    shared = lambda x: x.repeat_interleave(heads // groups, -2)
    return q, shared(k), shared(v.view(*shape, groups, dim)), gate


def attention_output(h, o, gate, p):
    mixed = (o.float() * gate.float().sigmoid()).to(h.dtype).flatten(-2)
    return feed_forward(h + F.linear(mixed, p["self_attn.o_proj.weight"]), p)


def mtp_join(embedded, h, p):
    return F.linear(torch.cat([norm(embedded, p["pre_fc_norm_embedding.weight"]),
                               norm(h, p["pre_fc_norm_hidden.weight"])], -1), p["fc.weight"])


def weighted_loss(h, table, targets, weights):
    """Sum of weight x cross-entropy over the rows of h [N, D]."""
    losses = F.cross_entropy(F.linear(h, table).float(), targets, reduction="none")
    return (losses * weights).sum()


attention_output_plain = attention_output
delta_inputs, delta_output = compiled(delta_inputs), compiled(delta_output)
attention_inputs, attention_output = compiled(attention_inputs), compiled(attention_output)
mtp_join, weighted_loss, final_norm = compiled(mtp_join), compiled(weighted_loss), compiled(norm)


class Batch:
    """Packed documents. tokens [B, T]; starts [B, T] true where a document begins (position 0 of a row always does), as a
    numpy array: the documents' bounds are found on the host, so that no step waits for the GPU."""

    def __init__(self, tokens, starts_host):
        starts = torch.from_numpy(starts_host).to(tokens.device)
        self.tokens = tokens
        batch, length = tokens.shape
        place = torch.arange(length, device=tokens.device).expand(batch, length)
        self.ages = place - torch.where(starts, place, 0).cummax(1).values
        self.length = length
        if tokens.is_cuda:
            first = np.append(np.nonzero(starts_host.reshape(-1))[0], batch * length).astype(np.int32)
            self.bounds = torch.from_numpy(first).to(tokens.device)
        self.documents = starts.long().cumsum(1)

    def causal_mask(self, rows=slice(None)):
        same = self.documents[rows, :, None] == self.documents[rows, None, :]
        return (same & torch.ones_like(same[0]).tril())[:, None]

    def attend(self, q, k, v):
        """q, k, v [B, T, heads, dim] -> the same shape; causal inside each document."""
        if not q.is_cuda:
            out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                                 attn_mask=self.causal_mask())
            return out.transpose(1, 2)
        flat = [x.flatten(0, 1) for x in (q, k, v)]
        out = torch.ops.aten._flash_attention_forward(*flat, self.bounds, self.bounds, self.length, self.length, 0.0,
                                                      True, False)[0]
        return out.view(q.shape)


class Model:
    def __init__(self, config, leaves):
        self.config, self.leaves = config, leaves
        self.table = leaves["model.embed_tokens.weight"]
        self.layers = [self.short(f"model.layers.{i}.") for i in range(config.layers)]
        self.mtp = self.short("mtp.")
        self.mtp_layer = self.short("mtp.layers.0.")

    def short(self, base):
        return {name[len(base):]: leaf for name, leaf in self.leaves.items() if name.startswith(base)}

    def attention_shape(self):
        c = self.config
        return c.heads, c.groups, c.head_dim, c.rope_theta, c.rotary

    def trunk(self, batch, taps=()):
        """-> final-normed hidden states [B, T, D], and the residual stream after the layers named in taps."""
        h = F.embedding(batch.tokens, self.table)
        tapped = []
        for i, p in enumerate(self.layers):
            if self.config.is_full(i):
                q, k, v, gate = attention_inputs(h, batch.ages, p, *self.attention_shape())
                h = attention_output(h, batch.attend(q, k, v), gate, p)
            else:
                q, k, v, summed, beta, z = delta_inputs(h, batch.ages, p, self.config.delta_heads)
                h = delta_output(h, gated_delta(q, k, v, summed, beta), z, p)
            if i in taps:
                tapped.append(h)
        return final_norm(h, self.leaves["model.norm.weight"]), tapped

    def mtp_levels(self, batch, hidden, depth, rows=None):
        """Chained MTP outputs [B, T, D], one a level: level n at i has seen the tokens up to i + n and predicts i + n + 1.

        Level 1 attends causally over its own pairs. A deeper level stands where the chain stands when it is served: over
        the true pairs up to i, then the chain's own pairs. Values past a document's end are meaningless: weigh them 0.
        `rows` restricts levels above 1 to the first rows of the batch, where attention needs an explicit mask.
        """
        outputs, keys, values = [], [], []
        y = hidden
        for level in range(1, depth + 1):
            if level == 2 and rows is not None:
                y, keys, values = y[:rows], [keys[0][:rows]], [values[0][:rows]]
            count = y.shape[0]
            shifted = F.pad(batch.tokens[:count], (0, level))[:, level:]
            x = mtp_join(F.embedding(shifted, self.table), y, self.mtp)
            q, k, v, gate = attention_inputs(x, batch.ages[:count] + (level - 1), self.mtp_layer, *self.attention_shape())
            keys.append(k)
            values.append(v)
            if level == 1:
                o = batch.attend(q, k, v)
            else:
                o = self.chain_attention(batch, q, keys, values)
            y = final_norm(attention_output(x, o, gate, self.mtp_layer), self.mtp["norm.weight"])
            outputs.append(y)
        return outputs

    def chain_attention(self, batch, q, keys, values):
        count, length = q.shape[:2]
        diagonal = torch.eye(length, dtype=torch.bool, device=q.device).expand(count, 1, length, length)
        mask = torch.cat([batch.causal_mask(slice(0, count))] + [diagonal] * (len(keys) - 1), -1)
        wide = lambda parts: torch.cat(parts, 1).transpose(1, 2)
        out = F.scaled_dot_product_attention(q.transpose(1, 2), wide(keys), wide(values), attn_mask=mask)
        return out.transpose(1, 2)
