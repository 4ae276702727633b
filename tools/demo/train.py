"""Trains the demo model and its MTP layer together: AdamW on fp32 masters, a cosine over the given time rather than over a
step count (a lease ends when it ends), the last part with the weights rounded to the codes they are served in.

train.py --corpus DIR --out DIR --seconds S [--rows R]: writes model.pt (masters), log.jsonl, and a checkpoint a minute.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

import model as demo
from parameters import Parameters

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LEVEL_WEIGHTS = [0.25, 0.1, 0.05]


class Epochs:
    """Rows in order, epoch after epoch; the next epoch is packed by another process meanwhile."""

    def __init__(self, corpus, rows):
        self.corpus, self.rows, self.epoch, self.packer = corpus, rows, 0, None
        self.open(corpus / "epoch0.npz")

    def open(self, path):
        data = np.load(path)
        put = lambda name, kind: torch.from_numpy(data[name].astype(kind)).to(DEVICE)
        self.tokens, self.weights, self.starts = put("tokens", np.int16), put("weights", np.uint8), data["starts"]
        self.at = 0
        self.next_path = self.corpus / f"epoch{self.epoch + 1}.npz"
        self.packer = subprocess.Popen([sys.executable, str(Path(__file__).parent / "corpus.py"), "pack", "--corpus",
                                        str(self.corpus / "train.npz"), "--seed", str(self.epoch + 1), "--out",
                                        str(self.next_path)])

    def next(self):
        if self.at + self.rows > len(self.tokens):
            if self.packer.poll() is None and DEVICE == "cuda" and not self.next_path.exists():
                self.at = 0  # not ready yet: go on with the same rows rather than wait
                self.shuffle()
            else:
                self.packer.wait()
                self.epoch += 1
                self.open(self.next_path)
        part = slice(self.at, self.at + self.rows)
        self.at += self.rows
        return self.tokens[part].int() & 0xFFFF, self.starts[part], self.weights[part].float() / 10

    def shuffle(self):
        order = torch.randperm(len(self.tokens))
        self.starts = self.starts[order.numpy()]
        self.tokens, self.weights = self.tokens[order.to(DEVICE)], self.weights[order.to(DEVICE)]

    def close(self):
        if self.packer and self.packer.poll() is None:
            self.packer.kill()


def targets(batch, weights, ahead):
    """Token `ahead` places on and its weight, 0 across a document's end."""
    shift = lambda x: torch.nn.functional.pad(x, (0, ahead))[:, ahead:]
    inside = shift(batch.documents) == batch.documents
    return shift(batch.tokens).long(), shift(weights) * inside


def losses(model, batch, weights, deep_rows):
    """Mean losses: of the model, and of each MTP level."""
    hidden, _ = model.trunk(batch)
    found = []
    levels = [hidden] + model.mtp_levels(batch, hidden, 3 if deep_rows else 1, deep_rows)
    for n, y in enumerate(levels):
        wanted, heavy = targets(batch, weights, n + 1)
        count = y.shape[0]
        total = demo.weighted_loss(y.flatten(0, 1), model.table, wanted[:count].flatten(), heavy[:count].flatten())
        found.append(total / heavy[:count].sum().clamp(min=1))
    return found


@torch.no_grad()
def held_losses(model, corpus, rows=64):
    from corpus import pack_rows
    data = np.load(corpus / "held.npz")
    table = {}
    for kind in sorted(set(data["kinds"])):
        chosen = np.nonzero(data["kinds"] == kind)[0]
        parts = [slice(*data["bounds"][i:i + 2]) for i in chosen]
        ids, weights = (np.concatenate([data[name][p] for p in parts]) for name in ("ids", "weights"))
        bounds = np.concatenate([[0], np.cumsum([p.stop - p.start for p in parts])])
        tokens, starts, heavy = pack_rows(ids, weights, bounds, 0)
        fill = lambda x, kind: np.concatenate([x, np.repeat(x[-1:], (-len(x)) % rows, 0)]).astype(kind)
        put = lambda x, kind: torch.from_numpy(fill(x, kind)).to(DEVICE)
        tokens, starts, heavy = put(tokens, np.int32), fill(starts, bool), put(heavy * (heavy >= 10), np.float32) / 10
        sums = [0.0, 0.0]
        for at in range(0, len(tokens), rows):
            batch = demo.Batch(tokens[at:at + rows], starts[at:at + rows])
            hidden, _ = model.trunk(batch)
            wanted, mass = targets(batch, heavy[at:at + rows], 1)
            sums[0] += float(demo.weighted_loss(hidden.flatten(0, 1), model.table, wanted.flatten(), mass.flatten()))
            sums[1] += float(mass.sum())
        table[str(kind)] = sums[0] / sums[1]
    return table


def rate_at(progress, step, peak):
    return peak * min(1.0, step / 200) * (0.04 + 0.96 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--corpus", type=Path, required=True)
    flags.add_argument("--out", type=Path, required=True)
    flags.add_argument("--seconds", type=float, required=True)
    flags.add_argument("--rows", type=int, default=64)
    flags.add_argument("--rate", type=float, default=2.5e-3)
    flags.add_argument("--rounded-from", type=float, default=0.72)
    flags.add_argument("--resume", type=Path)
    flags.add_argument("--config", default="{}", help="changes of the model's sizes, JSON (for trials)")
    options = flags.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    config = demo.Config(**json.loads(options.config))
    parameters = Parameters(demo.specification(config), DEVICE)
    if options.resume:
        parameters.load(torch.load(options.resume, map_location=DEVICE))
    model = demo.Model(config, parameters.leaves())
    epochs = Epochs(options.corpus, options.rows)
    log = open(options.out / "log.jsonl", "a")
    began = saved = shown = time.time()
    step, recent, tokens_seen = 0, [], 0
    while True:
        if step == 6:
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            print(f"train: compiled after {time.time() - began:.0f} s", flush=True)
            spent = time.time() - began
            began_training = time.time()
        progress = 0.0 if step < 6 else (time.time() - began_training) / max(1.0, options.seconds - spent)
        if progress >= 1.0:
            break
        rounded = progress >= options.rounded_from
        parameters.refresh(rounded)
        tokens, starts, weights = epochs.next()
        batch = demo.Batch(tokens, starts)
        parts = losses(model, batch, weights, max(1, options.rows // 4) if step % 2 == 0 or step < 6 else 0)
        (parts[0] + sum(w * part for w, part in zip(LEVEL_WEIGHTS, parts[1:]))).backward()
        rate = rate_at(progress, step, options.rate)
        norm = parameters.update(rate)
        step += 1
        tokens_seen += tokens.numel()
        if step % 10 == 0:
            recent.append(torch.stack([part.detach() for part in parts[:2]] + [norm]))
        if step % 200 == 0 or (DEVICE == "cpu" and step % 10 == 0):
            means = torch.stack(recent).mean(0).tolist()
            recent = []
            now = time.time()
            entry = {"step": step, "tokens": tokens_seen, "seconds": now - began, "loss": means[0], "mtp": means[1],
                     "gradient": means[2], "rate": rate, "rounded": rounded}
            if DEVICE == "cuda" and now - saved > 60:
                saved = now
                torch.save(parameters.masters(), options.out / "checkpoint.pt")
                entry["held"] = held_losses(model, options.corpus, options.rows)
            log.write(json.dumps(entry) + "\n")
            log.flush()
            print(f"train {entry['seconds']:5.0f} s step {step} epoch {epochs.epoch} loss {means[0]:.3f} mtp {means[1]:.3f} "
                  f"norm {means[2]:.2f} {200 * tokens.numel() / (now - shown):.0f} tokens/s {entry.get('held', '')}", flush=True)
            shown = now
    epochs.close()
    for rounded in (False, True):
        parameters.refresh(rounded)
        held = held_losses(model, options.corpus, options.rows)
        log.write(json.dumps({"step": step, "tokens": tokens_seen, "final": True, "rounded": rounded, "held": held}) + "\n")
        print(f"train: held-out, {'rounded' if rounded else 'exact'} weights: {held}", flush=True)
    torch.save(parameters.masters(), options.out / "model.pt")


if __name__ == "__main__":
    main()
