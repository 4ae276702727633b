"""DFlash2 and DFlash block drafters in plain torch, written from their description (families-a.md 4.3 and 4.4): what the
golden values of drafters are computed with."""

import torch


class Oracle:
    def __init__(self, config: dict, weights: dict, dtype=torch.float32):
        self.config, self.own, self.dtype = config, config["dflash_config"], dtype
        self.w = {name: value.to(dtype) for name, value in weights.items()}
        self.hd, self.heads, self.kv_heads = (config[key] for key in ("head_dim", "num_attention_heads",
                                                                       "num_key_value_heads"))
        self.layers = config["num_hidden_layers"]

    def linear(self, x, name):
        return x @ self.w[name + ".weight"].T

    def norm(self, x, name):
        x32 = x.float()
        scaled = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return (scaled * self.w[name + ".weight"].float()).to(self.dtype)

    def rope(self, x, positions):
        half = self.hd // 2
        frequency = self.config["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) * 2 / self.hd)
        angle = positions.double()[:, None, None] * frequency
        cos, sin, low, high = angle.cos().float(), angle.sin().float(), x[..., :half].float(), x[..., half:].float()
        return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1).to(self.dtype)

    def context(self, taps):
        """taps: [rows, taps * hidden], the target's residual stream. -> features [rows, hidden]"""
        return self.norm(self.linear(taps.to(self.dtype), "fc"), "hidden_norm")

    def keys(self, x, layer, positions):
        prefix = f"layers.{layer}.self_attn."
        key = self.linear(x, prefix + "k_proj").view(-1, self.kv_heads, self.hd)
        value = self.linear(x, prefix + "v_proj").view(-1, self.kv_heads, self.hd)
        return self.rope(self.norm(key, prefix + "k_norm"), positions), value

    def convolve(self, y, kernel, base, side):
        """kernel: [rows, 2 sides, 2 taps, groups]; y before the block is zero."""
        if kernel is None:
            return y
        before = torch.cat([torch.zeros_like(y[:1]), y[:-1]])
        expand = lambda tap: base[side, tap] + kernel[:, side, tap].repeat_interleave(self.own["conv_group_size"], dim=-1)
        return expand(0) * y + expand(1) * before

    def kernels(self, u, name):
        if "conv_group_size" not in self.own:
            return None, None
        groups = self.config["hidden_size"] // self.own["conv_group_size"]
        return self.linear(u, name + ".kernel_projection").view(-1, 2, 2, groups), self.w[name + ".base_kernel"]

    def visible(self, layer, q_positions, k_positions, context_rows):
        sliding = self.config["layer_types"][layer] == "sliding_attention"
        distance = q_positions[:, None] - k_positions[None, :]
        mask = distance < self.config["sliding_window"] if sliding else torch.ones_like(distance, dtype=torch.bool)
        if self.config.get("is_causal", sliding):
            mask = mask & (distance >= 0)
        in_block = torch.arange(len(k_positions)) >= context_rows
        if not self.config.get("is_causal", sliding):
            mask = mask | in_block[None, :]
        return mask

    def attention(self, u, layer, context, positions):
        prefix, rows = f"layers.{layer}.self_attn.", u.shape[0]
        query = self.linear(u, prefix + "q_proj").view(rows, self.heads, self.hd)
        query = self.rope(self.norm(query, prefix + "q_norm"), positions)
        context_positions = torch.arange(context.shape[0])
        parts = [self.keys(context, layer, context_positions), self.keys(u, layer, positions)]
        key, value = (torch.cat(list(both)) for both in zip(*parts))
        mask = self.visible(layer, positions, torch.cat([context_positions, positions]), context.shape[0])
        out = torch.zeros(rows, self.heads, self.hd, dtype=self.dtype)
        for head in range(self.heads):
            group = head // (self.heads // self.kv_heads)
            scores = (query[:, head] @ key[:, group].T).float() * self.hd ** -0.5
            chance = torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1).to(self.dtype)
            out[:, head] = chance @ value[:, group]
        return self.linear(out.reshape(rows, -1), prefix + "o_proj")

    def block(self, context, embedding, pending, rows):
        """Final-normed states of the rows after the pending token's."""
        ids = torch.tensor([pending] + [self.own["mask_token_id"]] * (rows - 1))
        positions = context.shape[0] + torch.arange(rows)
        x = embedding.to(self.dtype)[ids] * self.own.get("input_embedding_scale", 1.0)
        for layer in range(self.layers):
            name = f"layers.{layer}."
            u = self.norm(x, name + "input_layernorm")
            kernel, base = self.kernels(u, name + "attention_conv")
            mixed = self.attention(self.convolve(u, kernel, base, 0), layer, context, positions)
            x = x + self.convolve(mixed, kernel, base, 1)
            u = self.norm(x, name + "post_attention_layernorm")
            kernel, base = self.kernels(u, name + "mlp_conv")
            inner = self.convolve(u, kernel, base, 0)
            inner = torch.nn.functional.silu(self.linear(inner, name + "mlp.gate_proj")) * self.linear(
                inner, name + "mlp.up_proj")
            x = x + self.convolve(self.linear(inner, name + "mlp.down_proj"), kernel, base, 1)
        return self.norm(x[1:], "norm")

    def select(self, states, unary, pending):
        """Greedy choice along the block: candidates [depth, k], their pair scores given the choice before, choices."""
        top_k = self.own.get("selector_top_k", 16)
        order = unary.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
        pairs, choices, previous = torch.zeros(order.shape), [], pending
        for depth in range(order.shape[0]):
            if "selector_rank" in self.own:
                hidden = self.linear(states[depth:depth + 1], "candidate_selector.hidden_projection")[0].float()
                before = self.w["candidate_selector.predecessor_codebook"][previous].float()
                after = self.w["candidate_selector.successor_codebook"][order[depth]].float()
                pairs[depth] = (before * hidden * after).sum(dim=-1)
            previous = int(order[depth, (unary[depth, order[depth]] + pairs[depth]).argmax()])
            choices.append(previous)
        return order.to(torch.int32), pairs, torch.tensor(choices, dtype=torch.int32)
