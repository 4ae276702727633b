#!/usr/bin/env python3
"""Holds what compute-sanitizer's racecheck reported against the machine code: do the two accesses of a report ever lie
between the same two barriers of the whole CTA?

racecheck watches one run, and reports races across a barrier where part of a CTA met at a named barrier before. This walks
through the code instead, from the kernel's begin and from each barrier of the whole CTA (`BAR.SYNC 0x0` without a thread count
and without a predicate) to the next: whatever a run does, it takes one of these ways. Where no such way begins at one barrier
and leads to both accesses, barriers keep them apart, in one thread as in two.

ASSUMED, and not checked here or by synccheck: all threads of a CTA take the same barriers, one after the other. In the machine
code every `BAR.SYNC 0x0` is the same barrier, so two threads that wait at two different ones meet, and would have both accesses
between them. Read the source: each condition and each loop around a `__syncthreads()` has to be the same for the whole CTA.

Accesses that an mbarrier or a named barrier orders aren't kept apart in this sense. Those have to be explained otherwise, and so
has a copy that a barrier doesn't end (`LDGSTS`, bulk copies: they write when they land, which is what their own wait is for):
here it is no access to shared memory, and such a pair is not found.

    tools/explain_racecheck.py [--cuobjdump PATH] [--kernel NAME] --binary PROGRAM REPORT...

PROGRAM is the program that ran (or an object of the same build), REPORT all that compute-sanitizer printed (racecheck stops
printing at its --print-limit: give it one that is larger than the number of reports; `tools/device_check.sh --sanitizer racecheck
--logs FOLDER` does). Reports name functions that were inlined, so a pair is looked up by its addresses, in kernels whose
(mangled) name contains NAME: exactly one has to have both accesses there.

Exit status 1 when barriers don't keep a reported pair apart; when no kernel or more than one has it; when the kernel's code can't be
walked (a jump to a computed address, a function with a barrier that is called); when a line about an access can't be read; when
reports weren't printed or the run didn't end; when no report was found.
"""

import argparse
import re
import subprocess
import sys
from collections import Counter

from check_sass import UnknownWay, following, functions, functions_called

ACCESS = re.compile(r"\b(Read|Write) access at (.*)\+0x([0-9a-f]+)(?: in (\S+))?(?: \[\d+ hazards?\])?\s*$")
SUMMARY = re.compile(r"RACECHECK SUMMARY: (\d+) hazards? displayed \((\d+) errors?, (\d+) warnings?")
OPERATIONS = {"Read": ("LDS", "LDSM", "ATOMS"), "Write": ("STS", "ATOMS")}


def reported_pairs(report):
    """{((kind, address, source line), the same of the other access)} of all "Race reported" blocks, and what is wrong with the
    report: lines that can't be read, reports that weren't printed."""
    pairs, wrong = set(), []
    first, second, ended = None, True, False  # of the block at hand; of the report
    for number, line in enumerate(report.splitlines(), 1):
        summary = SUMMARY.search(line)
        if summary:
            ended = True
            missing = int(summary[2]) + int(summary[3]) - int(summary[1])
            if missing > 0:
                wrong.append(f"{missing} reports were not printed (--print-limit)")
        begins = "Race reported" in line
        if begins:
            if not second:
                wrong.append(f"a report above line {number} has one access only")
            first, second = None, False
        if not begins and " access at " not in line:
            continue
        access = ACCESS.search(line)
        if access is None or not begins and first is None:
            wrong.append(f"line {number} can't be read: {line.strip()}")
            second = True  # said already
            continue
        place = (access[1], int(access[3], 16), access[4] or access[2])
        if begins:
            first = place
        else:
            second = True
            pairs.add((first, place))
    if not second:
        wrong.append("the last report has one access only")
    if not ended:
        wrong.append("no summary: the run didn't end")
    return pairs, wrong


def is_barrier(instruction):
    _, predicated, operation, operands = instruction
    return operation.startswith("BAR.SYNC") and operands.strip() == "0x0" and not predicated


def reached(code, place, start):
    """Addresses that the program may come to from `start` (the index of an instruction) without a barrier of the whole CTA."""
    waiting, seen = [start], set()
    while waiting:
        index = waiting.pop()
        if index in seen or index >= len(code) or is_barrier(code[index]):
            continue
        seen.add(index)
        waiting += following(code, place, index)
    return {code[index][0] for index in seen}


class Kernel:
    def __init__(self, name, code):
        self.name = name
        self.code = code
        self.place = {address: index for index, (address, *_) in enumerate(code)}
        self._stretches = None

    def holds(self, access):
        kind, address, _ = access
        index = self.place.get(address)
        return index is not None and self.code[index][2].split(".")[0] in OPERATIONS[kind]

    def stretches(self):
        """What the program may come to between one barrier and the next, for each barrier and for the kernel's begin. A call goes
        on in its function and behind itself: what is reached so is all that is reached, as long as no function has a barrier,
        behind which the walk would go on in its callers."""
        if self._stretches is None:
            for index in functions_called(self.code, self.place):
                if self.code[index][2].startswith("BAR"):
                    raise UnknownWay(f"{self.code[index][0]:#x} {self.code[index][2]} in a function that is called")
            begins = [0] + [index + 1 for index, instruction in enumerate(self.code) if is_barrier(instruction)]
            self._stretches = [reached(self.code, self.place, begin) for begin in begins]
        return self._stretches

    def reaches(self, access):
        return any(access[1] in stretch for stretch in self.stretches())

    def keeps_apart(self, one, other):
        return not any(one[1] in stretch and other[1] in stretch for stretch in self.stretches())


def explain(pairs, kernels):
    """(source lines, "kept apart" | "NOT kept apart" | "not found" | "ambiguous ...") of each pair."""
    for one, other in pairs:
        holders = [kernel for kernel in kernels if kernel.holds(one) and kernel.holds(other)]
        if len(holders) > 1:
            result = "ambiguous: several kernels have such accesses there, name one with --kernel"
        elif not holders or not holders[0].reaches(one) or not holders[0].reaches(other):
            result = "not found"
        else:
            result = "kept apart" if holders[0].keeps_apart(one, other) else "NOT kept apart"
        yield (one[2], other[2]), result


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--cuobjdump", default="cuobjdump")
    arguments.add_argument("--kernel", default="", metavar="NAME")
    arguments.add_argument("--binary", required=True)
    arguments.add_argument("reports", nargs="+", metavar="REPORT")
    options = arguments.parse_args()
    pairs, complete = set(), True
    for path in options.reports:
        with open(path, encoding="utf-8", errors="replace") as file:
            found, wrong = reported_pairs(file.read())
        pairs |= found
        for what in wrong:
            complete = False
            print(f"{path}: {what}")
    run = subprocess.run([options.cuobjdump, "-sass", options.binary], capture_output=True, text=True, check=True)
    kernels = [Kernel(name, code) for name, code in functions(run.stdout) if options.kernel in name]
    try:
        results = Counter(explain(pairs, kernels))
    except UnknownWay as way:
        print(f"a kernel with a reported pair can't be walked: {way}")
        return 1
    for ((one, other), result), count in sorted(results.items()):
        print(f"{one} and {other}: {count} pairs of instructions {result}")
    wrong = sum(count for (_, result), count in results.items() if result != "kept apart")
    print(f"{len(pairs)} pairs, {wrong} not kept apart by barriers of the whole CTA; {len(kernels)} kernels read")
    return 1 if wrong or not pairs or not complete else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"explain_racecheck.py: {error}")
