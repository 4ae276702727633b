#!/usr/bin/env python3
"""Quality on real weights: our logits against transformers in fp32 on the same dequantised GGUF weights, teacher-forced.

    python tools/quality.py prepare MODEL.gguf                    token ids and reference logits, into the cache
    python tools/quality.py compare MODEL.gguf LOGITS             LOGITS: raw fp32 [tokens, vocabulary], as dump_logits writes
    python tools/quality.py run MODEL.gguf [--dump build/release/bin/dump_logits] [--backend cpu] [--result FILE.json]

`run` prepares what isn't cached, lets dump_logits compute our side, compares, and writes the result. Bounds: top-1 agrees
at 99 % of positions or more, mean KL(reference || ours) is 3e-4 nats or less; exit status 1 when they aren't met.

The text: topics of Python's own documentation (pydoc_data) and the source of its textwrap module, so that prose, code and
tables occur and nothing has to be downloaded; its SHA-256 and Python's version are in the result. Gemma's BOS is put in
front. Needs the packages of tests/golden/requirements.txt.
"""

from __future__ import annotations  # numpy's types in signatures need no numpy then

import argparse
import hashlib
import inspect
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

try:
    import numpy as np
except ImportError:  # --help works without
    np = None

ROOT = Path(__file__).resolve().parent.parent
ROWS_PER_STEP = 128  # logits of a large vocabulary are handled in steps
TOP1_MIN = 0.99
MEAN_KL_MAX = 3e-4
TOPICS = ["assert", "assignment", "class", "comparisons", "exceptions", "import", "lambda", "naming", "strings", "with"]


def source_text() -> str:
    import textwrap
    from pydoc_data.topics import topics

    # Code in the middle, so that a change of subject is in it too.
    parts = [topics[name] for name in TOPICS[:2]] + [inspect.getsource(textwrap)[:3000]]
    return "\n\n".join(parts + [topics[name] for name in TOPICS[2:]])


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))


def cache_paths(model: Path, count: int) -> dict:
    folder = Path(os.environ.get("TENSORFOLD_QUALITY_CACHE", ROOT / ".cache" / "quality")) / f"{model.stem}-{count}"
    folder.mkdir(parents=True, exist_ok=True)
    return {name: folder / name for name in ("tokens.txt", "reference.f32", "reference.json", "ours.f32")}


def load_reference(model: Path):
    import torch
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model.parent, gguf_file=model.name, dtype=torch.float32,
                                                  attn_implementation="eager")
    return loaded.eval()


def token_ids(model: Path, count: int) -> list:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name)
    text = source_text()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if "gemma" in model.name.lower():
        ids = [tokenizer.bos_token_id] + ids
    if len(ids) < count:
        raise SystemExit(f"the text gives {len(ids)} tokens, {count} are needed")
    shown = tokenizer.decode(ids[1:40], clean_up_tokenization_spaces=False)
    if shown.strip()[:60] not in text:
        raise SystemExit(f"the tokenizer of {model.name} doesn't give the text back: {shown!r}")
    return ids[:count]


def prepare(model: Path, count: int) -> dict:
    paths = cache_paths(model, count)
    if paths["reference.json"].exists():
        return paths
    import torch
    import transformers

    ids = token_ids(model, count)
    paths["tokens.txt"].write_text(" ".join(map(str, ids)) + "\n")
    started = time.monotonic()
    reference = load_reference(model)
    print(f"reference: {sum(p.numel() for p in reference.parameters()) / 1e6:.0f} M parameters in fp32", file=sys.stderr)
    with torch.no_grad():
        hidden = reference.model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0]
        vocabulary = reference.lm_head.weight.shape[0]
        out = np.memmap(paths["reference.f32"], np.float32, "w+", shape=(count, vocabulary))
        for first in range(0, count, ROWS_PER_STEP):
            logits = reference.lm_head(hidden[first:first + ROWS_PER_STEP])
            cap = getattr(reference.config, "final_logit_softcapping", None)
            out[first:first + ROWS_PER_STEP] = (cap * torch.tanh(logits / cap) if cap else logits).numpy()
        out.flush()
    facts = {"vocabulary": vocabulary, "tokens": count, "text_sha256": hashlib.sha256(source_text().encode()).hexdigest(),
             "token_sha256": hashlib.sha256(np.array(ids, "<i4").tobytes()).hexdigest(),
             "python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__}
    paths["reference.json"].write_text(json.dumps(facts, indent=2) + "\n")
    print(f"reference logits in {time.monotonic() - started:.0f} s: {paths['reference.f32']}", file=sys.stderr)
    return paths


def compare(model: Path, count: int, logits_path: Path) -> dict:
    paths = prepare(model, count)
    facts = json.loads(paths["reference.json"].read_text())
    shape = (count, facts["vocabulary"])
    if logits_path.stat().st_size != shape[0] * shape[1] * 4:
        raise SystemExit(f"{logits_path} has {logits_path.stat().st_size} bytes, expected fp32 {list(shape)}")
    reference = np.memmap(paths["reference.f32"], np.float32, "r", shape=shape)
    ours = np.memmap(logits_path, np.float32, "r", shape=shape)
    ids = np.array(paths["tokens.txt"].read_text().split(), dtype=np.int64)
    agree, divergence, losses, gaps = [], [], [[], []], []
    for first in range(0, count, ROWS_PER_STEP):
        a = log_softmax(reference[first:first + ROWS_PER_STEP])
        b = log_softmax(ours[first:first + ROWS_PER_STEP])
        if not np.isfinite(b).all():
            raise SystemExit(f"our logits of rows {first} to {first + len(b) - 1} aren't all finite")
        agree.append(a.argmax(axis=-1) == b.argmax(axis=-1))
        best = np.partition(a, -2, axis=-1)
        gaps.append(best[:, -1] - best[:, -2])
        divergence.append((np.exp(a) * (a - b)).sum(axis=-1))
        following = ids[first + 1:first + len(a) + 1]
        for which, values in enumerate((a, b)):
            losses[which].append(-values[np.arange(len(following)), following])
    agree, divergence, gaps = map(np.concatenate, (agree, divergence, gaps))
    return {
        "model": model.name, "positions": count, "top1_agreement": float(agree.mean()),
        "mean_kl": float(divergence.mean()), "kl_99th_percentile": float(np.quantile(divergence, 0.99)),
        "largest_kl": float(divergence.max()),
        # How close the reference's own two best are where the choices differ: near ties say little.
        "largest_reference_margin_where_top1_differs": float(gaps[~agree].max(initial=0.0)),
        "perplexity_reference": float(np.exp(np.concatenate(losses[0]).mean())),
        "perplexity_ours": float(np.exp(np.concatenate(losses[1]).mean())),
        "passes": bool(agree.mean() >= TOP1_MIN and divergence.mean() <= MEAN_KL_MAX),
        "bounds": {"top1_agreement_min": TOP1_MIN, "mean_kl_max": MEAN_KL_MAX}, "reference": facts,
    }


def run(arguments) -> dict:
    paths = prepare(arguments.model, arguments.tokens)
    command = [str(arguments.dump), str(arguments.model), str(paths["tokens.txt"]), str(paths["ours.f32"]), "--backend",
               arguments.backend]
    if arguments.backend == "reference":
        command += ["--rounding", arguments.rounding]
    started = time.monotonic()
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit(f"failed: {' '.join(command)}")
    print(f"our logits in {time.monotonic() - started:.0f} s", file=sys.stderr)
    result = compare(arguments.model, arguments.tokens, paths["ours.f32"])
    paths["ours.f32"].unlink()  # up to 2 GiB, and quick to make again
    rounding = f", rounding {arguments.rounding}" if arguments.backend == "reference" else ""
    return {"backend": arguments.backend + rounding} | result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["prepare", "compare", "run"])
    parser.add_argument("model", type=Path, help="a .gguf file")
    parser.add_argument("logits", type=Path, nargs="?", help="for compare")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--dump", type=Path, default=ROOT / "build/release/bin/dump_logits")
    parser.add_argument("--backend", default="cpu", choices=["cpu", "reference"])
    parser.add_argument("--rounding", default="none", choices=["none", "backend"], help="of the reference backend")
    parser.add_argument("--result", type=Path, help="write the result here too")
    arguments = parser.parse_args()
    if np is None:
        print("numpy is missing: python3 -m pip install -r tests/golden/requirements.txt, in a virtual environment", file=sys.stderr)
        return 2
    if not arguments.model.is_file():
        print(f"{arguments.model} isn't a file; tools/fetch_packages.py fetches the models", file=sys.stderr)
        return 2
    if arguments.action == "prepare":
        prepare(arguments.model, arguments.tokens)
        return 0
    if arguments.action == "compare":
        if arguments.logits is None:
            parser.error("compare needs LOGITS")
        result = compare(arguments.model, arguments.tokens, arguments.logits)
    else:
        result = run(arguments)
    text = json.dumps(result, indent=2) + "\n"
    print(text, end="")
    if arguments.result:
        arguments.result.write_text(text)
    return 0 if result["passes"] else 1


if __name__ == "__main__":
    sys.exit(main())
