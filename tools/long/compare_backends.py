#!/usr/bin/env python3
"""How near each backend's logits of a GGUF file are to fp32 transformers on the same dequantised weights.

    compare_backends.py MODEL.gguf [--tokens FILE] [--dump build/release/bin/dump_logits]
                        [--backends cuda,cpu,reference,reference+rounding] [--decode-rows 24] [--result FILE.json]

All rows are teacher-forced; the last --decode-rows are computed one a pass, as a reply's are, and a second run without them
must give the same bits. Beside the backends stands transformers in bf16, on the GPU where there is one: what its own rounding
costs (of weights too, which backends don't round). --tokens: ids separated by blanks; else 224 of the text of
tools/quality.py, which needs the model's tokenizer. Exit status 1: a backend's mean KL is out of quality.py's bound (its
bound of top-1 wants more rows than these), a backend differs between decoding and prompt, or `cuda` is further from fp32
than twice the reference backend with rounding.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench/peers"), str(ROOT / "tools")]
import gguf_model
import quality

ROWS = 224
FURTHER_THAN_REFERENCE_MAX = 2.0


def transformers_logits(path, ids, dtype, device):
    model = gguf_model.load(path, dtype, device, attention="eager")
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids], device=device), use_cache=False).logits[0].float().cpu().numpy()


def backend_logits(arguments, tokens, name, decode_rows, folder):
    backend, _, rounding = name.partition("+")
    output = folder / "logits"
    command = [arguments.dump, arguments.model, tokens, output, "--backend", backend, "--decode-rows", str(decode_rows)]
    command += ["--rounding", "backend" if rounding else "none"]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return np.fromfile(output, np.float32)


def differences(reference, logits):
    """Of one run from fp32: largest and mean absolute difference, nats of KL a row, share of rows with the same best token."""
    far = np.abs(logits.astype(np.float64) - reference)
    p, q = quality.log_softmax(reference), quality.log_softmax(logits)
    divergence = (np.exp(p) * (p - q)).sum(axis=-1)
    same = p.argmax(axis=-1) == q.argmax(axis=-1)
    best = np.partition(p, -2, axis=-1)
    margins = (best[:, -1] - best[:, -2])[~same]
    return {"largest": float(far.max()), "mean": float(far.mean()), "root_mean_square": float(np.sqrt((far ** 2).mean())),
            "mean_kl": float(divergence.mean()), "largest_kl": float(divergence.max()), "top1": float(same.mean()),
            "largest_margin_where_top1_differs": float(margins.max(initial=0.0)), "finite": bool(np.isfinite(logits).all())}


def show(name, row, note=""):
    print(f"{name:<22} {row['largest']:9.4f} {row['mean']:9.5f} {row['root_mean_square']:9.5f} {row['mean_kl']:10.2e} "
          f"{row['largest_kl']:10.2e} {100 * row['top1']:7.1f} %  {note}", flush=True)


def compare(arguments, ids, folder):
    tokens = folder / "tokens"
    tokens.write_text(" ".join(map(str, ids)))
    reference = transformers_logits(arguments.model, ids, torch.float32, torch.device("cpu"))
    scale = float(np.sqrt((reference.astype(np.float64) ** 2).mean()))
    print(f"{arguments.model.name}: {len(ids)} rows x {reference.shape[1]}, root mean square of fp32 logits {scale:.3f}")
    print(f"{'from fp32':<22} {'largest':>9} {'mean':>9} {'RMS':>9} {'mean KL':>10} {'worst KL':>10} {'top-1':>9}")
    results, failures = {}, []
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    results["transformers bf16"] = differences(reference, transformers_logits(arguments.model, ids, torch.bfloat16, device))
    show("transformers bf16", results["transformers bf16"])
    for name in arguments.backends.split(","):
        begin = time.monotonic()
        logits = backend_logits(arguments, tokens, name, arguments.decode_rows, folder)
        row = results[name] = differences(reference, logits.reshape(reference.shape))
        notes = []
        if name in ("cuda", "cpu"):
            prompt_only = backend_logits(arguments, tokens, name, 0, folder)
            row["bits_differ"] = int((logits.view(np.uint32) != prompt_only.view(np.uint32)).sum())
            notes.append(f"{row['bits_differ']} logits differ between decoding and prompt")
            if row["bits_differ"]:
                failures.append(f"{name}: decoded rows have other bits")
        if not row["finite"] or row["mean_kl"] > quality.MEAN_KL_MAX:
            failures.append(f"{name}: logits aren't finite or mean KL is above {quality.MEAN_KL_MAX}")
        show(name, row, ", ".join([*notes, f"{time.monotonic() - begin:.0f} s"]))
    if "cuda" in results and "reference+rounding" in results:
        ratio = results["cuda"]["root_mean_square"] / results["reference+rounding"]["root_mean_square"]
        print(f"cuda is {ratio:.2f} times as far from fp32 as the reference backend with the same rounding")
        if ratio > FURTHER_THAN_REFERENCE_MAX:
            failures.append("cuda is further from fp32 than its rounding explains")
    return results, failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--tokens", type=pathlib.Path)
    parser.add_argument("--dump", type=pathlib.Path, default=ROOT / "build/release/bin/dump_logits")
    parser.add_argument("--backends", default="cuda,reference,reference+rounding")
    parser.add_argument("--decode-rows", type=int, default=24)
    parser.add_argument("--result", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.tokens:
        ids = [int(token) for token in arguments.tokens.read_text().split()]
    else:
        ids = quality.token_ids(arguments.model, ROWS)
    with tempfile.TemporaryDirectory() as folder:
        results, failures = compare(arguments, ids, pathlib.Path(folder))
    if arguments.result:
        facts = {"model": arguments.model.name, "rows": len(ids), "decode_rows": arguments.decode_rows}
        arguments.result.write_text(json.dumps(facts | {"from_fp32": results, "failures": failures}, indent=2) + "\n")
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


sys.exit(main())
