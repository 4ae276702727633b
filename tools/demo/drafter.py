"""The DFlash2 block drafter (families-a.md 4) for the demo model: forward over many blocks of a packed row at once, its
training on the model's own replies with the model frozen as it is served, and the MTP layer's last lessons on the same text.

drafter.py --corpus DIR --model model.pt --out DIR --seconds S: writes drafter.pt, model.pt (MTP refined), log.
"""

import argparse
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import chat_format
import corpus as corpus_room
import evaluate
import model as demo
import student
from parameters import Parameters
from train import DEVICE, rate_at, targets


@dataclass
class DrafterConfig:
    layers: int = 2
    inner: int = 1024
    heads: int = 6
    groups: int = 2
    head_dim: int = 64
    theta: float = 10000.0
    window: int = 2048
    block: int = 8
    conv_group: int = 16
    rank: int = 64
    candidates: int = 16

    def json(self, target, mask_id):
        return {
            "architectures": ["DFlash2DraftModel"], "model_type": "qwen3", "vocab_size": target.vocabulary,
            "hidden_size": target.hidden, "intermediate_size": self.inner, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.groups, "head_dim": self.head_dim,
            "hidden_act": "silu", "max_position_embeddings": target.context, "rms_norm_eps": demo.EPSILON,
            "rope_theta": self.theta, "rope_scaling": None, "attention_bias": False, "is_causal": False,
            "sliding_window": self.window, "use_sliding_window": True, "layer_types": ["sliding_attention"] * self.layers,
            "num_target_layers": target.layers, "tie_word_embeddings": False, "dtype": "bfloat16",
            "dflash_config": {"block_size": self.block, "mask_token_id": mask_id, "conv_group_size": self.conv_group,
                              "conv_kernel_size": 2, "selector_rank": self.rank, "selector_top_k": self.candidates,
                              "target_layer_ids": target.taps},
        }


def specification(target, config, seed=2):
    torch.manual_seed(seed)
    width, found = target.hidden, {}

    def matrix(name, rows, columns, spread=0.02, kind="matrix4"):
        found[name] = ((rows, columns), kind, torch.randn(rows, columns) * spread)

    def ones(name, size):
        found[name] = ((size,), "vector", torch.ones(size))

    matrix("fc.weight", width, len(target.taps) * width)
    ones("hidden_norm.weight", width)
    ones("norm.weight", width)
    for layer in range(config.layers):
        base = f"layers.{layer}."
        ones(base + "input_layernorm.weight", width)
        ones(base + "post_attention_layernorm.weight", width)
        matrix(base + "self_attn.q_proj.weight", config.heads * config.head_dim, width)
        matrix(base + "self_attn.k_proj.weight", config.groups * config.head_dim, width)
        matrix(base + "self_attn.v_proj.weight", config.groups * config.head_dim, width)
        matrix(base + "self_attn.o_proj.weight", width, config.heads * config.head_dim, 0.01)
        ones(base + "self_attn.q_norm.weight", config.head_dim)
        ones(base + "self_attn.k_norm.weight", config.head_dim)
        matrix(base + "mlp.gate_proj.weight", config.inner, width)
        matrix(base + "mlp.up_proj.weight", config.inner, width)
        matrix(base + "mlp.down_proj.weight", width, config.inner, 0.01)
        for conv in ("attention_conv", "mlp_conv"):
            kernel = torch.zeros(2, 2, width)
            kernel[:, 0] = 1.0
            found[base + conv + ".base_kernel"] = ((2, 2, width), "vector", kernel)
            matrix(base + conv + ".kernel_projection.weight", 4 * width // config.conv_group, width, 0.005)
    spread = 0.3
    found["candidate_selector.predecessor_codebook"] = ((target.vocabulary, config.rank), "plain", torch.randn(target.vocabulary, config.rank) * spread)
    found["candidate_selector.successor_codebook"] = ((target.vocabulary, config.rank), "plain", torch.randn(target.vocabulary, config.rank) * spread * 0.3)
    matrix("candidate_selector.hidden_projection.weight", config.rank, width)
    return found


def dynamic_conv(y, kernel, base):
    """y [N, B, D] blocks; kernel [N, B, 2, groups] of one side; base [2, D]."""
    wide = kernel.repeat_interleave(y.shape[-1] // kernel.shape[-1], -1)
    earlier = F.pad(y, (0, 0, 1, 0))[:, :-1]
    return ((base[0] + wide[:, :, 0]) * y + (base[1] + wide[:, :, 1]) * earlier).to(y.dtype)


def plain_norm(x, weight):
    return demo.norm(x, weight, 0.0)


def conv_kernels(u, p, conv, groups):
    return F.linear(u, p[conv + ".kernel_projection.weight"]).view(*u.shape[:-1], 2, 2, groups)


@demo.compiled
def context_features(tapped, p):
    return plain_norm(F.linear(torch.cat(tapped, -1), p["fc.weight"]), p["hidden_norm.weight"])


@demo.compiled
def context_keys(features, ages, p, groups: int, dim: int, theta: float, shared: int):
    k = F.linear(features, p["self_attn.k_proj.weight"]).view(*features.shape[:-1], groups, dim)
    v = F.linear(features, p["self_attn.v_proj.weight"]).view(*features.shape[:-1], groups, dim)
    k = demo.rotate(plain_norm(k, p["self_attn.k_norm.weight"]), ages, theta, dim)
    return k.repeat_interleave(shared, -2), v.repeat_interleave(shared, -2)


@demo.compiled
def block_before(x, positions, p, heads: int, groups: int, dim: int, theta: float, conv_groups: int):
    u = plain_norm(x, p["input_layernorm.weight"])
    kernels = conv_kernels(u, p, "attention_conv", conv_groups)
    mixed = dynamic_conv(u, kernels[:, :, 0], p["attention_conv.base_kernel"][0])
    part = lambda name, count: F.linear(mixed, p[f"self_attn.{name}_proj.weight"]).view(*x.shape[:-1], count, dim)
    q = demo.rotate(plain_norm(part("q", heads), p["self_attn.q_norm.weight"]), positions, theta, dim)
    k = demo.rotate(plain_norm(part("k", groups), p["self_attn.k_norm.weight"]), positions, theta, dim)
    shared = heads // groups
    return q, k.repeat_interleave(shared, -2), part("v", groups).repeat_interleave(shared, -2), kernels[:, :, 1]


@demo.compiled
def block_after(x, o, side, p, conv_groups: int):
    x = x + dynamic_conv(F.linear(o.flatten(-2), p["self_attn.o_proj.weight"]), side, p["attention_conv.base_kernel"][1])
    u = plain_norm(x, p["post_attention_layernorm.weight"])
    kernels = conv_kernels(u, p, "mlp_conv", conv_groups)
    mixed = dynamic_conv(u, kernels[:, :, 0], p["mlp_conv.base_kernel"][0])
    inner = F.silu(F.linear(mixed, p["mlp.gate_proj.weight"])) * F.linear(mixed, p["mlp.up_proj.weight"])
    return x + dynamic_conv(F.linear(inner, p["mlp.down_proj.weight"]), kernels[:, :, 1], p["mlp_conv.base_kernel"][1])


@demo.compiled
def draft_losses(hidden, table, previous, wanted, heavy, p):
    """Unary and selector cross-entropies over the whole vocabulary. hidden [N, D], previous and wanted [N], heavy [N]."""
    pair = F.embedding(previous, p["candidate_selector.predecessor_codebook"]) * F.linear(hidden, p["candidate_selector.hidden_projection.weight"])
    unary = F.linear(hidden, table).float()
    joint = unary + F.linear(pair, p["candidate_selector.successor_codebook"]).float()
    mass = heavy.sum().clamp(min=1e-3)
    loss = lambda scores: (F.cross_entropy(scores, wanted, reduction="none") * heavy).sum() / mass
    return loss(unary), loss(joint)


class Drafter:
    def __init__(self, config, target, leaves, mask_id):
        self.config, self.target, self.p, self.mask_id = config, target, leaves, mask_id
        self.layers = [{n[len(f"layers.{i}."):]: x for n, x in leaves.items() if n.startswith(f"layers.{i}.")}
                       for i in range(config.layers)]

    def blocks(self, batch, tapped, anchors):
        """anchors [B, A]: places in the rows of the pending tokens. -> hidden states [B, A, block - 1, D] of the masks."""
        c, table = self.config, self.target.table
        rows, count = anchors.shape
        block, width = c.block, table.shape[1]
        groups = width // c.conv_group
        features = context_features(tapped, self.p)
        pending = batch.tokens.gather(1, anchors)
        ids = torch.full((rows, count, block), self.mask_id, dtype=pending.dtype, device=pending.device)
        ids[:, :, 0] = pending
        x = F.embedding(ids, table).flatten(0, 1)
        ages = batch.ages.gather(1, anchors)
        positions = (ages[:, :, None] + torch.arange(block, device=ages.device)).flatten(0, 1)
        place = torch.arange(batch.length, device=ages.device)
        seen = (place < anchors[:, :, None]) & (place >= (anchors - ages)[:, :, None])  # [B, A, T]: the document's rows before
        own = torch.eye(count, dtype=torch.bool, device=ages.device).repeat_interleave(block, 0).repeat_interleave(block, 1)
        mask = torch.cat([seen.repeat_interleave(block, 1), own.expand(rows, -1, -1)], -1)[:, None]
        flat = lambda y: y.view(rows, count * block, *y.shape[2:])
        for p in self.layers:
            k_seen, v_seen = context_keys(features, batch.ages, p, c.groups, c.head_dim, c.theta, c.heads // c.groups)
            q, k, v, side = block_before(x, positions, p, c.heads, c.groups, c.head_dim, c.theta, groups)
            o = F.scaled_dot_product_attention(flat(q).transpose(1, 2), torch.cat([k_seen, flat(k)], 1).transpose(1, 2),
                                               torch.cat([v_seen, flat(v)], 1).transpose(1, 2), attn_mask=mask)
            o = o.transpose(1, 2).reshape(rows * count, block, c.heads, c.head_dim)
            x = block_after(x, o, side, p, groups)
        return plain_norm(x[:, 1:], self.p["norm.weight"]).view(rows, count, block - 1, width)


def draw_anchors(batch, heavy, block, count):
    """`count` places a row where a reply's token is pending and the whole block lies in the reply (weights 0 elsewhere)."""
    inside = (heavy > 0) & (batch.ages > 0)
    chance = torch.where(inside, torch.rand(heavy.shape, device=heavy.device) + 1e-3, 0.0)
    chance[:, -block:] = 0
    return chance.topk(count, 1).indices.sort(1).values


def own_documents(model, tokenizer, data, count, seconds, say):
    """Replies of the model itself to prompts of the corpus: -> token arrays as corpus.py makes them; weights 10 on replies."""
    ids, bounds = data["ids"], data["bounds"]
    starts, first = corpus_room.generation_starts(tokenizer, ids)
    rng = np.random.default_rng(11)
    by_program = first < int(data["program_tokens"])  # the corpus's first part; conversations count most, so they are asked most
    chosen = rng.permutation(np.nonzero(~by_program | (rng.random(len(first)) < 0.25))[0])
    opens = bounds[np.searchsorted(bounds, first, side="right") - 1]
    prompts = []
    for n in chosen:
        size = first[n] - opens[n]
        if 4 < size < 320:
            prompts.append(ids[opens[n]:first[n]].tolist())
            if len(prompts) == count:
                break
    temperatures = np.where(rng.random(len(prompts)) < 0.65, 0.0, 0.7)
    ends = [tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")]
    texts = student.generate(model, prompts, temperatures, ends, 512, seconds, say=say, seed=5)
    kept = [(text, len(prompt)) for text, prompt in zip(texts, prompts) if text and len(text) > len(prompt) + 2]
    flat = np.concatenate([np.array(text, dtype=np.uint16) for text, _ in kept])
    heavy = np.concatenate([np.repeat([0, 10], [size, len(text) - size]) for text, size in kept]).astype(np.uint8)
    limits = np.concatenate([[0], np.cumsum([len(text) for text, _ in kept])]).astype(np.int64)
    say(f"own text: {len(kept)} replies, {int((heavy > 0).sum())} tokens")
    return flat, heavy, limits


def mtp_losses(model, batch, hidden, heavy, deep_rows):
    found = []
    for n, y in enumerate(model.mtp_levels(batch, hidden, 3, deep_rows)):
        wanted, mass = targets(batch, heavy, n + 2)
        # a level counts where the token before its target was part of the reply too: nothing is drafted inside a prompt
        count = y.shape[0]
        total = demo.weighted_loss(y.flatten(0, 1), model.table, wanted[:count].flatten(), mass[:count].flatten())
        found.append(total / mass[:count].sum().clamp(min=1))
    return found


def frozen(parameters):
    """The model as served: rounded, only the MTP layer learning."""
    parameters.refresh(True)
    return {name: leaf if name.startswith("mtp.") else leaf.detach() for name, leaf in parameters.leaves().items()}


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--corpus", type=Path, required=True)
    flags.add_argument("--model", type=Path, required=True)
    flags.add_argument("--out", type=Path, required=True)
    flags.add_argument("--seconds", type=float, required=True, help="of training, after the own text is written")
    flags.add_argument("--prompts", type=int, default=160000)
    flags.add_argument("--text-seconds", type=float, default=40)
    flags.add_argument("--rows", type=int, default=32)
    flags.add_argument("--anchors", type=int, default=128)
    flags.add_argument("--rate", type=float, default=2e-3)
    flags.add_argument("--longest", type=int, default=512)
    flags.add_argument("--config", default="{}")
    options = flags.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    began = time.time()
    say = lambda text: print(f"drafter {time.time() - began:5.0f} s {text}", flush=True)
    tokenizer = Tokenizer.from_file(str(options.corpus / "tokenizer.json"))
    target = demo.Config(**json.loads(options.config))
    whole = Parameters(demo.specification(target), DEVICE)
    whole.load(torch.load(options.model, map_location=DEVICE))
    model = demo.Model(target, frozen(whole))
    data = np.load(options.corpus / "train.npz")
    text = own_documents(model, tokenizer, data, options.prompts, options.text_seconds, say)
    config = DrafterConfig()
    draft_parameters = Parameters(specification(target, config), DEVICE)
    mtp_only = Parameters({n: (tuple(x.shape), "matrix4" if x.dim() == 2 else "vector", x.cpu()) for n, x in whole.masters().items() if n.startswith("mtp.")}, DEVICE)
    leaves = {**{n: x.detach() for n, x in whole.leaves().items()}, **mtp_only.leaves()}
    model = demo.Model(target, leaves)
    drafter = Drafter(config, model, draft_parameters.leaves(), tokenizer.token_to_id("<|mask|>"))
    epoch, at, rows = 0, 0, corpus_room.pack_rows(*text, 0)
    log = open(options.out / "drafter_log.jsonl", "w")
    fade = torch.tensor([0.9**j for j in range(config.block - 1)], device=DEVICE)
    step, recent, clock = 0, [], None
    while True:
        if step == 4:
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            clock = time.time()
        progress = 0.0 if clock is None else (time.time() - clock) / options.seconds
        if progress >= 1:
            break
        if at + options.rows > len(rows[0]):
            epoch, at, rows = epoch + 1, 0, corpus_room.pack_rows(*text, epoch + 1) if DEVICE == "cpu" else shuffled(rows, epoch)
        part = slice(at, at + options.rows)
        at += options.rows
        batch = demo.Batch(torch.from_numpy(rows[0][part].astype(np.int32)).to(DEVICE), rows[1][part])
        heavy = torch.from_numpy(rows[2][part].astype(np.float32)).to(DEVICE) / 10
        rounded = progress > 0.5
        draft_parameters.refresh(rounded)
        mtp_only.refresh(True)
        with torch.no_grad():
            hidden, tapped = model.trunk(batch, target.taps)
        anchors = draw_anchors(batch, heavy, config.block, options.anchors)
        hh = drafter.blocks(batch, tapped, anchors)
        ahead = anchors[:, :, None] + torch.arange(config.block, device=DEVICE)
        tokens = batch.tokens.gather(1, ahead.flatten(1)).view(ahead.shape).long()
        same = batch.documents.gather(1, ahead.flatten(1)).view(ahead.shape) == batch.documents.gather(1, anchors)[:, :, None]
        mass = heavy.gather(1, ahead.flatten(1)).view(ahead.shape)[:, :, 1:] * same[:, :, 1:] * fade
        unary, joint = draft_losses(hh.flatten(0, 2), model.table, tokens[:, :, :-1].flatten(), tokens[:, :, 1:].flatten(), mass.flatten(), drafter.p)
        levels = mtp_losses(model, batch, hidden, heavy, max(1, options.rows // 4))
        (joint + 0.5 * unary + levels[0] + 0.7 * levels[1] + 0.5 * levels[2]).backward()
        draft_parameters.update(rate_at(progress, step, options.rate))
        mtp_only.update(rate_at(progress, step, 4e-4))
        step += 1
        if step % 10 == 0:
            recent.append(torch.stack([x.detach() for x in (joint, unary, *levels)]))
        if step % 200 == 0 or (DEVICE == "cpu" and step % 10 == 0):
            means = torch.stack(recent).mean(0).tolist()
            recent = []
            names = ("joint", "unary", "mtp1", "mtp2", "mtp3")
            log.write(json.dumps({"step": step, "seconds": time.time() - clock, **dict(zip(names, means))}) + "\n")
            log.flush()
            say(f"step {step} epoch {epoch} " + " ".join(f"{n} {m:.3f}" for n, m in zip(names, means)))
    draft_parameters.refresh(True)
    mtp_only.refresh(True)
    torch.save(draft_parameters.masters(), options.out / "drafter.pt")
    torch.save({**whole.masters(), **mtp_only.masters()}, options.out / "model.pt")
    report = evaluate.report(model, drafter, tokenizer, options.corpus, options.longest, say)
    (options.out / "evaluation.json").write_text(json.dumps(report, indent=1))
    say("done")


def shuffled(rows, seed):
    order = np.random.default_rng(seed).permutation(len(rows[0]))
    return tuple(part[order] for part in rows)


if __name__ == "__main__":
    main()
