#!/usr/bin/env python3
"""Reads the GPU's counters with Nsight Compute (ncu) while a program runs, and prints a line for each kind of launch: how long it
takes alone, how much of the memory's, the L2 cache's and the issue slots' peak it uses, and what its warps wait for.

    tools/profile_kernels.py [--kernels REGEX | --graphs] [--skip N] [--count N] [--save FILE] PROGRAM ARGUMENT...
    tools/profile_kernels.py --read FILE

Launches whose (demangled) name REGEX finds are counted; N of them are left out, then N are measured and the program is ended. To
get past warming up into a model's passes leave out some thousands: a pass of one row is a few hundred launches. For example

    tools/profile_kernels.py --skip 20000 --count 28 build/release/bin/tensorfold bench --synthetic qwen3.6-35b-a3b \\
        decode --context 512 --rows 1 --repeats 3 --backend cuda

What the figures are. ncu runs a launch alone, several times over, with cold caches: no launch overlaps with the one before, as in
a pass they do, and instructions are cold. So `us` is longer than in a pass, and small launches most of all. With --graphs it
runs a captured pass as one piece instead, launches overlapping as they do; a line is then a whole pass.

Shares of waiting are of all the time that the launch's warps were there, and name what the next instruction waited for. Warps that
have nothing to do count as well: those of a producer warpgroup but for the one that copies wait at a barrier from begin to end.

    long_scoreboard   global memory (or L2), first use of what was loaded     short_scoreboard   shared memory
    barrier           a barrier of the CTA or of a part of it                 wait               a fixed latency
    gmma              a group of wgmma                                        membar             a fence
    no_instruction    the instruction cache                                   imc_miss           the cache of constants
    selected          nothing: an instruction was issued                      not_selected       another warp was first

Exit status 1: nothing was measured, a launch was begun that couldn't be measured, or ncu said that something failed.
"""

import argparse
import csv
import math
import re
import statistics
import subprocess
import sys

SECTIONS = ("SpeedOfLight", "LaunchStats", "WarpStateStats", "MemoryWorkloadAnalysis", "ComputeWorkloadAnalysis",
            "SchedulerStats", "Occupancy", "InstructionStats")
STALL = re.compile(r"issue_stalled_(\w+)_per_issue_active|average_warp_latency_issue_stalled_(\w+)\.ratio")
SHARES = {"dram": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
          "L2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
          "issue": "sm__inst_executed.avg.per_cycle_elapsed"}
TENSOR = re.compile(r"sm__(inst_executed_)?pipe_tensor\w*\.avg\.pct_of_peak_sustained_active")  # its name differs from GPU to GPU
REASONS_SHOWN = 4


def run_profiler(options):
    """The profiler's output as text, one line of CSV a launch, and its exit status."""
    command = ["ncu", "--clock-control", "none", "--kill", "yes", "--csv", "--page", "raw", "--kernel-name-base", "demangled",
               "--launch-skip", str(options.skip), "--launch-count", str(options.count)]
    command += ["--graph-profiling", "graph"] if options.graphs else ["--kernel-name", f"regex:{options.kernels}"]
    for section in SECTIONS:
        command += ["--section", section]
    try:
        ended = subprocess.run(command + options.program, stdout=subprocess.PIPE, text=True, check=False)
    except FileNotFoundError:
        sys.exit("ncu isn't on the PATH: it comes with the CUDA toolkit (Nsight Compute)")
    if options.save:
        with open(options.save, "w", encoding="utf-8") as file:
            file.write(ended.stdout)
    return ended.stdout, ended.returncode


def launches(text):
    """[{column: value}] of the measured launches, and what went wrong; ncu's warnings go to standard error."""
    lines = text.splitlines()
    complaints = [line for line in lines if line.startswith("==ERROR==")]
    for warning in (line for line in lines if line.startswith("==WARNING==")):
        print(warning, file=sys.stderr)
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if begin is None:
        return [], complaints
    table = list(csv.reader(line for line in lines[begin:] if line.startswith('"')))
    # The second line holds the units. A launch that the profiler began and couldn't measure has no duration.
    found = [dict(zip(table[0], row)) for row in table[2:] if len(row) == len(table[0])]
    measured = [launch for launch in found if number(launch, "gpu__time_duration.sum") is not None]
    failed = len(table) - 2 - len(measured)
    if failed > 0:
        complaints.append(f"launches that were begun and couldn't be measured: {failed}")
    return measured, complaints


def number(launch, column):
    try:
        value = float(launch[column].replace(",", ""))
    except (KeyError, ValueError):
        return None
    return None if math.isnan(value) else value


def median(group, column):
    values = [value for value in (number(launch, column) for launch in group) if value is not None]
    return statistics.median(values) if values else None


def short_name(name):
    name = re.sub(r"tensorfold::ops::cuda::|\(anonymous namespace\)::|<?unnamed>::|void ", "", name)
    # Arguments go: from the bracket that the name's last one closes.
    depth = 0
    for i in range(len(name) - 1, -1, -1):
        depth += (name[i] == ")") - (name[i] == "(")
        if depth == 0:
            return name[:i] if name[i] == "(" else name
    return name


def reasons(group):
    """[(share of the warps' time in per cent, reason)], the largest first."""
    waits = {}
    for column in group[0]:
        match = STALL.search(column)
        if match and column.endswith(".ratio") and "not_issued" not in column:
            waits[match.group(1) or match.group(2)] = median(group, column) or 0.0
    whole = sum(waits.values())
    return sorted(((100 * wait / whole, reason) for reason, wait in waits.items()), reverse=True) if whole > 0 else []


def shares(group):
    values = {name: median(group, column) for name, column in SHARES.items()}
    if values["issue"] is not None:
        values["issue"] *= 100 / 4  # a multiprocessor issues four instructions a cycle
    tensor = [value for value in (median(group, column) for column in group[0] if TENSOR.fullmatch(column)) if value is not None]
    return values | {"tensor": max(tensor, default=None)}


def kinds(measured):
    """Launches by kernel, grid and block, in the order in which they came. A kernel's launches of one grid may be of different
    layers: those whose number of instructions differs by more than a tenth are told apart."""
    groups = []
    for launch in measured:
        key = (short_name(launch["Kernel Name"]), launch.get("Grid Size", ""), launch.get("Block Size", ""))
        work = number(launch, "smsp__inst_executed.sum") or 0.0
        for other, size, group in groups:
            if other == key and abs(work - size) <= 0.1 * size:
                group.append(launch)
                break
        else:
            groups.append((key, work, [launch]))
    return [(key, group) for key, _, group in groups]


def report(measured):
    lines = [f"{'launches':>8} {'us':>8} {'dram':>5} {'L2':>5} {'issue':>5} {'tensor':>6}  kernel, grid, block: what its warps wait for"]
    for (name, grid, block), group in kinds(measured):
        used = shares(group)
        cells = [(f"{value:.0f}%" if value is not None else "-").rjust(6 if name == "tensor" else 5) for name, value in used.items()]
        waits = ", ".join(f"{reason} {share:.0f} %" for share, reason in reasons(group)[:REASONS_SHOWN])
        duration = median(group, "gpu__time_duration.sum") / 1000
        lines.append(f"{len(group):8d} {duration:8.1f} {' '.join(cells)}  {name} {grid} {block}: {waits}")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", default=".", help="which launches count, a regular expression (.: all)")
    parser.add_argument("--graphs", action="store_true", help="measure captured passes as a whole (--skip and --count count those)")
    parser.add_argument("--skip", type=int, default=0, help="launches to leave out first (0)")
    parser.add_argument("--count", type=int, default=32, help="launches to measure (32)")
    parser.add_argument("--save", metavar="FILE", help="keep what ncu printed")
    parser.add_argument("--read", metavar="FILE", help="print the table of a kept file instead of running anything")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="the program and its arguments")
    options = parser.parse_args()
    if bool(options.read) == bool(options.program):
        parser.error("give a program to run, or --read FILE")
    status = 0
    if options.read:
        try:
            with open(options.read, encoding="utf-8") as file:
                text = file.read()
        except OSError as error:
            sys.exit(f"profile_kernels.py: {error}")
    else:
        text, status = run_profiler(options)
    measured, complaints = launches(text)
    # ncu ends the program when it has what was asked for; before that the program should have ended well.
    if not options.read and measured and len(measured) < options.count:
        print(f"only {len(measured)} of {options.count} launches came; ncu ended with {status}", file=sys.stderr)
        if status != 0:
            complaints.append("the program or ncu failed before all were measured")
    print("\n".join(report(measured) if measured else ["no launch was measured: fewer than --skip came, or none that --kernels finds"]))
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return 0 if measured and not complaints else 1


if __name__ == "__main__":
    sys.exit(main())
