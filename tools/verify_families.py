#!/usr/bin/env python3
"""The fold test of every family in every weight format: `tensorfold verify` on the golden checkpoints, on copies of them that
`tensorfold convert` makes in each affine width, and on the demo model.

A schedule's checkpoint is drawn: each family gets as many schedules as asked for, spread at random over its checkpoints, and
each format must come up often enough. It stands beside `verify` because
that command knows one model; this one knows what the tree holds.

    tools/verify_families.py --binary build/release/bin/tensorfold --backend cuda --schedules 300 --jobs 1

With --results FILE every run's report is kept as it comes, and a later call with the same seed, program, checkpoints and settings takes
what is there and goes on: a long verification outlives the machine it runs on.
"""

import argparse
import collections
import concurrent.futures
import hashlib
import itertools
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parent.parent
BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)
SOURCES = (SOURCE / "tests/golden/models", SOURCE / "models/demo")
REFUSED = "refused by name"
CRASH = re.compile(r"exit status -(?!2:|9:|15:)|.*CUDA: .* failed", re.S)  # a signal that nobody sends to stop a program; a GPU's fault
SCHEDULES_A_RUN_MAX = 25  # of one process: the longest one should not be what everybody waits for


def tensorfold(binary, *words, gpu=True):
    environment = os.environ if gpu else os.environ | {"CUDA_VISIBLE_DEVICES": ""}  # a GPU takes a while to answer
    return subprocess.run([binary, *map(str, words)], capture_output=True, text=True, env=environment)


def describe(binary, model):
    """(family, formats of its matrices)"""
    run = tensorfold(binary, "info", model, gpu=False)
    if run.returncode != 0:
        sys.exit(f"info {model}: {run.stderr.strip()}")
    family = re.search(r"^family: .*\((\S+)\)$", run.stdout, re.M).group(1)
    formats = {line.group(1).strip() for line in re.finditer(r"^  (\S.*?)\s+\d+ tensors +\d+ bytes$", run.stdout, re.M)}
    return family.removesuffix("_text"), formats


def converted(binary, source, bits, group, folder):
    """(path, family, formats) of the source in an affine width; none where the group divides no matrix of it."""
    out = folder / f"{source.name}_{bits}bit_{group}"
    run = tensorfold(binary, "convert", source, out, "--bits", bits, "--group", group, gpu=False)
    if run.returncode != 0:
        sys.exit(f"convert {source}: {run.stderr.strip()}")
    family, formats = describe(binary, out)
    return (out, family, formats) if any(name.startswith("affine") for name in formats) else None


def checkpoints(binary, folder, pool):
    """{family: [(path, formats)]}"""
    found = collections.defaultdict(list)
    models = sorted(SOURCES[0].iterdir()) + [SOURCES[1]]
    models = [path / "model.gguf" if (path / "model.gguf").exists() else path for path in models]
    for path, (family, formats) in zip(models, pool.map(lambda path: describe(binary, path), models)):
        found[family].append((path, formats))
    sources = []
    for models in found.values():
        plain = [path for path, formats in models if formats <= {"bf16", "f32"} and "bf16" in formats]
        sources.append(min(plain, key=lambda path: len(path.name)))
    wanted = [(source, bits, group) for source in sources for bits in BITS for group in GROUPS]
    for made in pool.map(lambda each: converted(binary, *each, folder), wanted):
        if made:
            found[made[1]].append((made[0], made[2]))
    return found


def drawn(models, schedules, draw):
    """How many schedules of each checkpoint: one each as far as they go, the others at random."""
    counts = collections.Counter(range(min(len(models), schedules)))
    counts.update(draw.choices(range(len(models)), k=max(0, schedules - len(models))))
    return counts


def runs_of(found, options):
    draw = random.Random(options.seed)
    for family, models in sorted(found.items()):
        for index, count in sorted(drawn(models, options.schedules, draw).items()):
            while count > 0:
                part = min(count, SCHEDULES_A_RUN_MAX)
                count -= part
                yield family, *models[index], part, draw.randrange(1, 1 << 31)


def replacements(found, refused_runs, seed):
    """Runs of other checkpoints of the family for those that were refused."""
    draw = random.Random(seed)
    refused = {path for _, path, _, _, _ in refused_runs}
    for family, _, _, schedules, _ in sorted(refused_runs, key=lambda run: run[4]):
        others = [model for model in found[family] if model[0] not in refused]
        if others:
            yield family, *draw.choice(others), schedules, draw.randrange(1, 1 << 31)


def verify(options, run, gpu):
    family, path, formats, schedules, seed = run
    words = ["verify", path, "--backend", options.backend, "--schedules", schedules, "--seed", seed, "--json"]
    if options.backend == "cpu":
        words += ["--threads", 1]
    if options.gpus > 1:
        words += ["--device", gpu % options.gpus]
    done = tensorfold(options.binary, *words)
    if "has no attention kernel" in done.stderr:
        return run, None, REFUSED
    try:
        report = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        report = None
    return run, report, "" if done.returncode == 0 else f"exit status {done.returncode}: {done.stderr.strip()[-600:]}"


def name_of(path):
    return (path.parent if path.name == "model.gguf" else path).name


def circumstances(options):
    """What a report depends on beside its run: the program, the backend, what steers it, and the checkpoints' files."""
    digest = hashlib.sha256(pathlib.Path(options.binary).read_bytes())
    for file in sorted(file for root in SOURCES for file in root.rglob("*") if file.is_file()):
        digest.update(f"{file.relative_to(SOURCE)} {file.stat().st_size}\n".encode() + file.read_bytes())
    settings = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith("TENSORFOLD_") and name != "TENSORFOLD_SOURCE")
    return " ".join([digest.hexdigest(), options.backend, *settings])


class Results:
    """The reports of runs that ended, in a file of one JSON object a line. Only those under the same circumstances count, and of runs that
    crashed, that they did: they are tried again, but fail the whole until FILE is removed. A run that was stopped, or found no GPU,
    leaves nothing."""

    def __init__(self, file, options):
        self.file, self.known, self.crashed = file, {}, {}
        if file is None:
            return
        self.circumstances = circumstances(options)
        file.touch()
        text = file.read_text()
        for line in text.splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # the last line of a program that was stopped
            if not isinstance(entry, dict) or entry.get("circumstances") != self.circumstances:
                continue
            kind = self.crashed if entry["report"] is None and entry["error"] != REFUSED else self.known
            kind[tuple(entry["run"])] = entry
        if text and not text.endswith("\n"):
            self.append("\n")

    def append(self, text):
        with open(self.file, "a") as file:
            file.write(text)

    @staticmethod
    def key(run):
        family, path, _, schedules, seed = run
        return family, name_of(path), schedules, seed

    def find(self, run):
        entry = self.known.get(self.key(run))
        return None if entry is None else (run, entry["report"], entry["error"])

    def crashes_of(self, runs):
        """What failed in an earlier call, of these runs."""
        for run in runs:
            if entry := self.crashed.get(self.key(run)):
                yield f"{' '.join(map(str, entry['run']))} crashed in an earlier call: {entry['error']}"

    def keep(self, run, report, error):
        if self.file is not None and (report is not None or error == REFUSED or CRASH.match(error)):
            entry = {"circumstances": self.circumstances, "run": self.key(run), "report": report, "error": error}
            self.append(json.dumps(entry) + "\n")


class Totals:
    """What the runs brought, added up."""

    def __init__(self):
        self.families, self.by_format = collections.defaultdict(collections.Counter), collections.Counter()
        self.mechanisms, self.paths = collections.Counter(), collections.Counter()
        self.failures, self.refused, self.left_out = [], set(), 0

    def add(self, run, report, error):
        """False: the backend has no kernels for the run's checkpoint."""
        family, path, formats, schedules, seed = run
        if error == REFUSED:
            self.refused.add(name_of(path))
            return False
        if error == "left out":
            self.left_out += schedules
            return True
        if error or report is None or report["differing_bits"] or report["failures"]:
            what = report.get("first_failure") if report else None
            self.failures.append(f"{name_of(path)} --schedules {schedules} --seed {seed}: {what or error or json.dumps(report)[:600]}")
        if report is not None:
            self.families[family].update({key: report[key] for key in ("schedules", "streams", "rows", "differing_bits")})
            self.by_format.update({name: report["schedules"] for name in formats})
            self.paths.update({f"{report['backend']} ({report['path']})": report["schedules"]})
            self.mechanisms.update(report["mechanisms"])
        return True

    def formats(self, found):
        return {name for models in found.values() for path, names in models if name_of(path) not in self.refused for name in names}

    def all_failures(self, found, options):
        yield from self.failures
        if self.left_out:
            yield f"{self.left_out} schedules were left out after {options.seconds:.0f} s"
        for family in sorted(found):
            if self.families[family]["schedules"] < options.schedules:
                yield f"{family} had {self.families[family]['schedules']} schedules"
        if len(self.paths) > 1:
            yield "the reports are of several backends or machines"
        if any(name.startswith("cuda") for name in self.paths) and self.mechanisms["drawn_by_backend"] == 0:
            yield "the GPU drew no token"
        for name in sorted(self.formats(found)):
            if self.by_format[name] < options.least:
                yield f"{name} came up in {self.by_format[name]} schedules"

    def show(self, found):
        print(f"{'family':<14}{'checkpoints':>12}{'schedules':>11}{'streams':>9}{'rows':>10}{'differing bits':>16}")
        for family, models in sorted(found.items()):
            row = self.families[family]
            print(f"{family:<14}{len(models):>12}{row['schedules']:>11}{row['streams']:>9}{row['rows']:>10}{row['differing_bits']:>16}")
        print("schedules by backend:", ", ".join(f"{name} {count}" for name, count in sorted(self.paths.items())))
        print("schedules by format:", ", ".join(f"{name} {count}" for name, count in sorted(self.by_format.items())))
        print("mechanisms:", ", ".join(f"{name} {count}" for name, count in sorted(self.mechanisms.items())))
        if self.refused:
            print("refused by name:", ", ".join(sorted(self.refused)))
            only = {name for models in found.values() for _, names in models for name in names} - self.formats(found)
            if only:
                print("formats of refused checkpoints alone:", ", ".join(sorted(only)))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--binary", default=SOURCE / "build/release/bin/tensorfold")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--schedules", type=int, default=300, help="of each family (300)")
    parser.add_argument("--least", type=int, default=20, help="schedules that each format must have come up in (20)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, help="programs at a time (4 with --backend cpu, else one a GPU: several take turns there and lose most of the time)")
    parser.add_argument("--gpus", type=int, default=1, help="programs take turns on so many GPUs (1)")
    parser.add_argument("--seconds", type=float, default=0, help="begin no run after this time: what is left out fails")
    parser.add_argument("--results", type=pathlib.Path, help="keep the runs' reports there, and do not repeat those it holds; for machines of one kind")
    options = parser.parse_args()
    options.jobs = options.jobs or (4 if options.backend in ("cpu", "reference") else options.gpus)
    return options


def main():
    options = parse_arguments()
    started = time.monotonic()
    totals, results = Totals(), Results(options.results, options)
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        found = checkpoints(options.binary, pathlib.Path(folder), pool)
        runs = list(runs_of(found, options))
        random.Random(0).shuffle(runs)
        totals.failures += results.crashes_of(runs)

        def timed(run, gpu):
            if known := results.find(run):
                return known
            if options.seconds and time.monotonic() - started > options.seconds:
                return run, None, "left out"
            done = verify(options, run, gpu)
            results.keep(*done)
            return done

        def collect(runs):
            for number, done in enumerate(pool.map(timed, runs, itertools.count()), 1):
                if sys.stderr.isatty():
                    print(f"\r{number} of {len(runs)} runs", end="", file=sys.stderr, flush=True)
                if not totals.add(*done):
                    yield done[0]

        refused_runs = list(collect(runs))
        list(collect(list(replacements(found, refused_runs, options.seed))))
    totals.show(found)
    failures = list(totals.all_failures(found, options))
    for line in failures:
        print("FAILED:", line)
    print(f"{sum(row['schedules'] for row in totals.families.values())} schedules in {time.monotonic() - started:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
