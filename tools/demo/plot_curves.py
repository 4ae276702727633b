"""docs/demo-model.png from the logs of a lease: plot_curves.py --lease DIR --out F.png"""

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def lines(path):
    return [json.loads(line) for line in open(path)]


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--lease", type=Path, required=True)
    flags.add_argument("--out", required=True)
    options = flags.parse_args()
    training = [entry for entry in lines(options.lease / "model/log.jsonl") if "loss" in entry]
    drafting = lines(options.lease / "drafter/drafter_log.jsonl")
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 3.6), dpi=80)
    millions = [entry["tokens"] / 1e6 for entry in training]
    left.plot(millions, [entry["loss"] for entry in training], label="model")
    left.plot(millions, [entry["mtp"] for entry in training], label="MTP, depth 1")
    first = next(entry["tokens"] / 1e6 for entry in training if entry["rounded"])
    left.axvline(first, color="gray", linewidth=0.8, linestyle=":")
    left.text(first, 2.5, " 4-bit codes", fontsize=8, color="gray")
    left.set(title="training loss", xlabel="million tokens", ylim=(0.4, 3.3))
    held = [entry for entry in training if "held" in entry]
    for kind in ("chat", "json", "edits", "code", "arithmetic"):
        middle.plot([entry["tokens"] / 1e6 for entry in held], [entry["held"][kind] for entry in held], marker=".", label=kind)
    middle.set(title="held-out loss of replies", xlabel="million tokens", yscale="log")
    for name, label in (("joint", "DFlash2 with selector"), ("unary", "DFlash2 alone"), ("mtp1", "MTP 1"), ("mtp3", "MTP 3")):
        right.plot([entry["step"] for entry in drafting], [entry[name] for entry in drafting], label=label)
    right.set(title="drafts on the model's own text", xlabel="step", ylim=(0, 4.6))
    for axes in (left, middle, right):
        axes.legend(fontsize=8)
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(options.out)


if __name__ == "__main__":
    main()
