"""An MTP head of the Qwen3.5 family in plain torch, written from its description (families-a.md 1.5 and 2.5), not from any
implementation: what the golden values of heads are computed with. transformers has no such head to ask."""

import torch


class Oracle:
    def __init__(self, text: dict, weights: dict, dtype=torch.float32):
        self.text, self.dtype = text, dtype
        self.w = {name: value.to(dtype) for name, value in weights.items()}
        self.hd = text["head_dim"]
        self.heads, self.kv_heads = text["num_attention_heads"], text["num_key_value_heads"]
        self.rotary = int(self.hd * text["rope_parameters"]["partial_rotary_factor"])
        self.theta = text["rope_parameters"]["rope_theta"]
        self.router_gaps = []

    def norm(self, x, name):
        x32 = x.float()
        scaled = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + self.text["rms_norm_eps"])
        return (scaled * (1.0 + self.w[name].float())).to(self.dtype)

    def rope(self, x):  # [T, H, hd], position = row
        half = self.rotary // 2
        frequency = self.theta ** (-torch.arange(half, dtype=torch.float64) * 2 / self.rotary)
        angle = torch.arange(x.shape[0], dtype=torch.float64)[:, None, None] * frequency
        cos, sin = angle.cos().float(), angle.sin().float()
        low, high, rest = x[..., :half].float(), x[..., half:2 * half].float(), x[..., 2 * half:]
        return torch.cat([low * cos - high * sin, high * cos + low * sin, rest.float()], dim=-1).to(self.dtype)

    def attention(self, u):
        prefix, rows = "mtp.layers.0.self_attn.", u.shape[0]
        query_gate = (u @ self.w[prefix + "q_proj.weight"].T).view(rows, self.heads, 2 * self.hd)
        query, gate = query_gate.split(self.hd, dim=-1)
        key = (u @ self.w[prefix + "k_proj.weight"].T).view(rows, self.kv_heads, self.hd)
        value = (u @ self.w[prefix + "v_proj.weight"].T).view(rows, self.kv_heads, self.hd)
        query = self.rope(self.norm(query, prefix + "q_norm.weight"))
        key = self.rope(self.norm(key, prefix + "k_norm.weight"))
        out = torch.zeros(rows, self.heads, self.hd, dtype=self.dtype)
        for head in range(self.heads):
            group = head // (self.heads // self.kv_heads)
            scores = (query[:, head] @ key[:, group].T).float() * self.hd ** -0.5
            scores = scores.masked_fill(torch.ones(rows, rows).triu(1).bool(), float("-inf"))
            out[:, head] = torch.softmax(scores, dim=-1).to(self.dtype) @ value[:, group]
        return (out * torch.sigmoid(gate)).reshape(rows, -1) @ self.w[prefix + "o_proj.weight"].T

    def gated(self, u, gate, up, down):
        return (torch.nn.functional.silu(u @ gate.T) * (u @ up.T)) @ down.T

    def feed_forward(self, u):
        prefix = "mtp.layers.0.mlp."
        if "num_experts" not in self.text:
            return self.gated(u, *(self.w[f"{prefix}{part}_proj.weight"] for part in ("gate", "up", "down")))
        top_k = self.text["num_experts_per_tok"]
        chance = torch.softmax((u @ self.w[prefix + "gate.weight"].T).float(), dim=-1)
        ranked, order = chance.sort(dim=-1, descending=True, stable=True)
        self.router_gaps.append((ranked[:, :top_k] - ranked[:, 1:top_k + 1]).min().item())
        out = torch.zeros(u.shape, dtype=torch.float32)
        for row in range(u.shape[0]):
            share = ranked[row, :top_k] / ranked[row, :top_k].sum()
            for slot in range(top_k):
                expert = order[row, slot]
                gate, up = self.w[prefix + "experts.gate_up_proj"][expert].chunk(2, dim=0)
                down = self.w[prefix + "experts.down_proj"][expert]
                out[row] += share[slot] * self.gated(u[row], gate, up, down).float()
        shared = self.gated(u, *(self.w[f"{prefix}shared_expert.{part}_proj.weight"] for part in ("gate", "up", "down")))
        gate = torch.sigmoid((u @ self.w[prefix + "shared_expert_gate.weight"].T).float())
        return (out + gate * shared.float()).to(self.dtype)

    def states(self, hidden, tokens):
        """y of every pair (hidden[i], tokens[i])."""
        embedded = self.norm(self.w["embed"][tokens], "mtp.pre_fc_norm_embedding.weight")
        joined = torch.cat([embedded, self.norm(hidden, "mtp.pre_fc_norm_hidden.weight")], dim=-1)
        x = joined @ self.w["mtp.fc.weight"].T
        x = x + self.attention(self.norm(x, "mtp.layers.0.input_layernorm.weight"))
        x = x + self.feed_forward(self.norm(x, "mtp.layers.0.post_attention_layernorm.weight"))
        return self.norm(x, "mtp.norm.weight")

    def logits(self, states):
        return (states @ self.w["head"].T).float()


def shapes(text: dict) -> dict:
    d, hd = text["hidden_size"], text["head_dim"]
    heads, kv_heads = text["num_attention_heads"], text["num_key_value_heads"]
    layer = {
        "input_layernorm.weight": [d], "post_attention_layernorm.weight": [d],
        "self_attn.q_proj.weight": [2 * heads * hd, d], "self_attn.k_proj.weight": [kv_heads * hd, d],
        "self_attn.v_proj.weight": [kv_heads * hd, d], "self_attn.o_proj.weight": [d, heads * hd],
        "self_attn.q_norm.weight": [hd], "self_attn.k_norm.weight": [hd]}
    gated = lambda prefix, width: {f"{prefix}gate_proj.weight": [width, d], f"{prefix}up_proj.weight": [width, d],
                                   f"{prefix}down_proj.weight": [d, width]}
    if "num_experts" in text:
        experts, width = text["num_experts"], text["moe_intermediate_size"]
        layer |= {"mlp.gate.weight": [experts, d], "mlp.experts.gate_up_proj": [experts, 2 * width, d],
                  "mlp.experts.down_proj": [experts, d, width], "mlp.shared_expert_gate.weight": [1, d]}
        layer |= gated("mlp.shared_expert.", text["shared_expert_intermediate_size"])
    else:
        layer |= gated("mlp.", text["intermediate_size"])
    return {"mtp.pre_fc_norm_embedding.weight": [d], "mtp.pre_fc_norm_hidden.weight": [d], "mtp.fc.weight": [d, 2 * d],
            "mtp.norm.weight": [d]} | {f"mtp.layers.0.{name}": shape for name, shape in layer.items()}


def run(text: dict, weights: dict, hidden, tokens, chain: int, dtype=torch.float32, chained=None):
    """Absorbs pairs (hidden[i], tokens[i]), then chains `chain` levels after the last, each fed with its predecessor's y and
    best token (or `chained`). Returns logits of the pairs, of the levels, and the tokens fed to the levels."""
    oracle = Oracle(text, weights, dtype)
    hidden, tokens = hidden.to(dtype), tokens.clone()
    logits, fed = oracle.logits(oracle.states(hidden, tokens)), []
    levels = []
    last = logits[-1]
    for level in range(chain):
        y = oracle.states(hidden, tokens)[-1:]
        fed.append(int(last.argmax()) if chained is None else int(chained[level]))
        hidden, tokens = torch.cat([hidden, y]), torch.cat([tokens, torch.tensor([fed[-1]])])
        last = oracle.logits(oracle.states(hidden, tokens))[-1]
        levels.append(last)
    if oracle.router_gaps and min(oracle.router_gaps) < 1e-4:
        raise ArithmeticError(f"router gap {min(oracle.router_gaps):.1e}")
    return logits, torch.stack(levels), torch.tensor(fed, dtype=torch.int32)
