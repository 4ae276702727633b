"""SmolLM2-135M-Instruct (Apache-2.0) as a batched writer: weights from its GGUF file, one decoding step in bf16 for the
refill loop. Run as a program it answers a list of prompts: teacher.py --gguf F --tokenizer F --prompts F --out DIR."""

import argparse
import json
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import decode_kernels
from refill import RefillLoop

LAYERS, HEADS, GROUPS, DIM, WIDTH, THETA, EPSILON = 30, 9, 3, 64, 576, 100000.0, 1e-5
END_ID = 2
compiled = torch.compile(dynamic=False, disable=not torch.cuda.is_available())


def read_weights(path, device, dtype):
    import gguf
    reader = gguf.GGUFReader(path)
    found = {}
    for tensor in reader.tensors:
        value = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        value = torch.from_numpy(np.ascontiguousarray(value)).float()
        if tensor.name.endswith(("attn_q.weight", "attn_k.weight")):  # llama.cpp's pairs are adjacent: back to halves
            value = value.view(-1, DIM // 2, 2, value.shape[1]).transpose(1, 2).reshape(value.shape)
        found[tensor.name] = value.to(device, dtype)
    return found


def norm(x, weight):
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON) * weight.float()).to(x.dtype)


@compiled
def before(h, positions, weight, joined):
    rows = h.shape[0]
    q, k, v = F.linear(norm(h, weight), joined).view(rows, HEADS + 2 * GROUPS, DIM).split([HEADS, GROUPS, GROUPS], 1)
    turn = THETA ** (-torch.arange(DIM // 2, device=h.device, dtype=torch.float32) / (DIM // 2))
    angle = positions.float()[:, None, None] * turn
    cos, sin = angle.cos(), angle.sin()

    def rotate(x):
        a, b = x.float().chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)

    return rotate(q), rotate(k), v.contiguous()


@compiled
def after(h, o, weight, output, gate_up, down):
    h = h + F.linear(o.flatten(1), output)
    gate, up = F.linear(norm(h, weight), gate_up).chunk(2, -1)
    return h + F.linear(F.silu(gate) * up, down)


class Teacher:
    def __init__(self, weights, rows, longest):
        self.table, self.norm = weights["token_embd.weight"], weights["output_norm.weight"]
        self.layers = []
        for i in range(LAYERS):
            part = lambda name: weights[f"blk.{i}.{name}.weight"]
            self.layers.append((part("attn_norm"), torch.cat([part("attn_q"), part("attn_k"), part("attn_v")]),
                                part("ffn_norm"), part("attn_output"), torch.cat([part("ffn_gate"), part("ffn_up")]),
                                part("ffn_down")))
        cache = lambda: torch.zeros(LAYERS, rows, GROUPS, longest, DIM, device=self.table.device, dtype=self.table.dtype)
        self.k_cache, self.v_cache = cache(), cache()

    def step(self, tokens, positions):
        h = F.embedding(tokens, self.table)
        for i, (first, joined, second, output, gate_up, down) in enumerate(self.layers):
            q, k, v = before(h, positions, first, joined)
            o = decode_kernels.attention(q, k, v, self.k_cache[i], self.v_cache[i], positions)
            h = after(h, o, second, output, gate_up, down)
        return F.linear(norm(h, self.norm), self.table)


def wrap(prompt):
    return f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"


def pack(encodings, temperatures, device):
    longest = max(len(ids) for ids in encodings)
    table = np.full((len(encodings) + 1, longest), END_ID, dtype=np.int32)
    lengths = np.full(len(encodings) + 1, longest, dtype=np.int32)
    for i, ids in enumerate(encodings):
        table[i, :len(ids)], lengths[i] = ids, len(ids)
    warm = np.append(np.asarray(temperatures, dtype=np.float32), np.float32(1.0))
    return tuple(torch.from_numpy(x).to(device) for x in (table, lengths, warm))


def collect(loop, tokenizer, done):
    """Texts of the prompts that ended by themselves and aren't in `done` yet: [(index, text)]."""
    ends = loop.ends[:-1].cpu().numpy()
    fresh = [i for i in np.nonzero(ends > 0)[0] if i not in done]
    if not fresh:
        return []
    rows = loop.tokens[torch.tensor(fresh, device=loop.tokens.device)].cpu().numpy()
    lengths = loop.lengths[:-1].cpu().numpy()
    replies = [rows[n, lengths[i]:ends[i] - 1].tolist() for n, i in enumerate(fresh)]
    done.update(fresh)
    return list(zip((int(i) for i in fresh), tokenizer.decode_batch(replies)))


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--gguf", required=True)
    flags.add_argument("--tokenizer", required=True)
    flags.add_argument("--prompts", required=True, help="JSON lines with \"prompt\"")
    flags.add_argument("--out", required=True, type=Path)
    flags.add_argument("--rows", type=int, default=4096)
    flags.add_argument("--longest", type=int, default=320)
    flags.add_argument("--seconds", type=float, default=150)
    flags.add_argument("--temperature", type=float, default=0.6)
    flags.add_argument("--min-p", type=float, default=0.08)
    options = flags.parse_args()
    from tokenizers import Tokenizer
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = Tokenizer.from_file(options.tokenizer)
    prompts = [json.loads(line)["prompt"] for line in open(options.prompts)]
    encodings = [e.ids for e in tokenizer.encode_batch([wrap(p) for p in prompts], add_special_tokens=False)]
    weights = read_weights(options.gguf, device, torch.bfloat16 if device == "cuda" else torch.float32)
    options.out.mkdir(parents=True, exist_ok=True)
    table = pack(encodings, [options.temperature] * len(prompts), device)
    with torch.no_grad():
        teacher = Teacher(weights, options.rows, options.longest)
        loop = RefillLoop(teacher.step, options.rows, *table, [END_ID], options.longest, options.min_p)
        done, shards, last = set(), [0], [time.time()]

        def save():
            texts = collect(loop, tokenizer, done)
            path = options.out / f"shard{shards[0]:03d}.jsonl"
            scratch = path.with_suffix(".part")
            scratch.write_text("".join(json.dumps([i, text]) + "\n" for i, text in texts))
            scratch.rename(path)
            shards[0] += 1

        def report(loop, steps, elapsed):
            if steps % 320 == 0:
                print(f"teacher {elapsed:6.1f} s {steps} steps {int(loop.drawn) / elapsed:9.0f} tokens/s, "
                      f"{len(done)} kept", flush=True)
            if time.time() - last[0] > 25 and not saving.is_alive():  # texts are written while the GPU goes on
                last[0] = time.time()
                start_saving()

        saving = threading.Thread(target=lambda: None)

        def start_saving():
            nonlocal saving
            saving = threading.Thread(target=save)
            saving.start()

        loop.run(options.seconds, report)
        if saving.is_alive():
            saving.join()
        save()
    cut = int((loop.ends < 0).sum())
    print(f"teacher: {len(done)} replies, {cut} cut, {int(loop.drawn)} tokens drawn", flush=True)
    (options.out / "done").write_text("")


if __name__ == "__main__":
    sys.exit(main())
