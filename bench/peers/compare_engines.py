#!/usr/bin/env python3
"""One-stream decoding of GGUF files on one GPU: TensorFold, llama.cpp and transformers in one run, in turns, one at a time.

    compare_engines.py MODEL.gguf ... --llama-bench PROGRAM [--tensorfold build/release/bin/tensorfold] [--rounds 3]
                       [--result FILE.json]

Each engine reads 32 tokens and then decodes 128 without drafts; the rate is of those 128 (llama.cpp: `-d 32 -n 128`, mean of
5; TensorFold: `bench decode --context 32 --reply-tokens 128`; transformers: median of 5, see transformers_decode.py, which has its
graphs captured before the first round and idles while others are timed). The table has medians of the rounds. Exit status 1: an
engine didn't run or TensorFold is less than 1.3 times the best of the others.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
WANTED_RATIO = 1.3
PROMPT_TOKENS, REPLY_TOKENS = 32, 128
ENGINES = ("llama.cpp", "transformers", "TensorFold")


class Transformers:
    """transformers_decode.py --serve on one model."""

    def __init__(self, model, seconds_max):
        command = [sys.executable, ROOT / "bench/peers/transformers_decode.py", model, "--serve", "--seconds-max",
                   str(seconds_max), "--prompt-tokens", str(PROMPT_TOKENS), "--reply-tokens", str(REPLY_TOKENS)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def wait_until_ready(self):
        return self.process.stdout.readline().strip() == "READY"

    def measure(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def stop(self):
        self.process.stdin.close()
        self.process.wait(timeout=30)


def measure_llama(program, model):
    command = [program, "-m", model, "-p", "0", "-n", str(REPLY_TOKENS), "-d", str(PROMPT_TOKENS), "-r", "5", "-ngl", "99",
               "-fa", "1", "-o", "json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    report = json.loads(done.stdout)[-1]
    return {"tokens_per_second": report["avg_ts"], "samples": report["samples_ts"], "backend": report["backends"],
            "build": report.get("build_commit")}


def measure_tensorfold(program, backend, model):
    command = [program, "bench", model, "decode", "--backend", backend, "--context", str(PROMPT_TOKENS), "--reply-tokens",
               str(REPLY_TOKENS), "--repeats", "3", "--rows", "1", "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    report = json.loads(done.stdout)
    stream = report["decode"]["stream"]
    return {"tokens_per_second": stream["tokens_per_second"]["median"], "token_hash": stream["token_hash"],
            "device": report["device"]}


def measure_round(arguments, model, peer):
    measures = {"llama.cpp": lambda: measure_llama(arguments.llama_bench, model), "transformers": peer.measure if peer else None,
                "TensorFold": lambda: measure_tensorfold(arguments.tensorfold, arguments.backend, model)}
    results = {}
    for engine in ENGINES:
        try:
            results[engine] = measures[engine]()
        except (TypeError, OSError, ValueError, KeyError, IndexError, subprocess.SubprocessError) as error:
            text = getattr(error, "stderr", None) or str(error)
            print(f"{engine} failed on {model.name}: {text[-400:]}", file=sys.stderr, flush=True)
    return results


def start_transformers(models, seconds_max):
    """All at once, because compiling takes long. Without those that don't come up."""
    peers = {model: Transformers(model, seconds_max) for model in models}
    return {model: peer for model, peer in peers.items() if peer.wait_until_ready()}


def table(rounds, models):
    """Prints medians and returns whether every engine ran and TensorFold is fast enough."""
    print(f"\n{'one stream, tokens/s':<36} {'llama.cpp':>10} {'transformers':>12} {'TensorFold':>10} {'of best':>8}   lowest to highest of ours")
    is_met = True
    for model in models:
        rates = {engine: [done[engine]["tokens_per_second"] for done in rounds[model] if engine in done] for engine in ENGINES}
        medians = {engine: statistics.median(values) if values else 0.0 for engine, values in rates.items()}
        best = max(medians["llama.cpp"], medians["transformers"])
        ratio = medians["TensorFold"] / best if best else 0.0
        is_met = is_met and all(medians.values()) and ratio >= WANTED_RATIO
        ours = rates["TensorFold"] or [0.0]
        print(f"{model.stem:<36} {medians['llama.cpp']:10.0f} {medians['transformers']:12.0f} {medians['TensorFold']:10.0f} "
              f"{ratio:7.2f}x   {min(ours):.0f} to {max(ours):.0f}")
    return is_met


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=pathlib.Path, nargs="+")
    parser.add_argument("--llama-bench", type=pathlib.Path, required=True)
    parser.add_argument("--tensorfold", type=pathlib.Path, default=ROOT / "build/release/bin/tensorfold")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compile-seconds-max", type=float, default=120)
    parser.add_argument("--result", type=pathlib.Path)
    arguments = parser.parse_args()
    peers = start_transformers(arguments.models, arguments.compile_seconds_max)
    rounds = {model: [] for model in arguments.models}
    for _ in range(arguments.rounds):
        for model in arguments.models:
            rounds[model].append(measure_round(arguments, model, peers.get(model)))
    for peer in peers.values():
        peer.stop()
    is_met = table(rounds, arguments.models)
    if arguments.result:
        arguments.result.write_text(json.dumps({model.name: done for model, done in rounds.items()}, indent=1) + "\n")
    return 0 if is_met else 1


sys.exit(main())
