#!/usr/bin/env python3
"""Holds what compute-sanitizer's racecheck reported against the machine code: do the two accesses of a report ever lie
between the same two barriers of the whole CTA?

racecheck watches one run, and reports races across a barrier where part of a CTA met at a named barrier before. This walks through the
code instead, from the kernel's begin and from each barrier of the whole CTA (`BAR.SYNC 0x0` without a thread count and
without a predicate) to the next: whatever a run does, it takes one of these ways. Where no such way begins at one barrier and
leads to both accesses, barriers keep them apart, in one thread as in two, as long as all threads of a CTA take the same barriers
one after the other (conditions around them are the same for the whole CTA; synccheck looks after that as well). Accesses that
an mbarrier or a named barrier orders aren't kept apart in this sense: those have to be explained otherwise.

    tools/explain_racecheck.py [--cuobjdump PATH] [--kernel NAME] --binary PROGRAM REPORT...

PROGRAM is the program that ran (or an object of the same build), REPORT what compute-sanitizer printed. Reports name
functions that were inlined, so a pair is looked up by its addresses, in kernels whose (mangled) name contains NAME. Exit status 1 when
barriers don't keep a reported pair apart, when a reported address is no access to shared memory in any kernel, or when no
report was found.
"""

import argparse
import re
import subprocess
import sys
from collections import Counter

from check_sass import following, functions

ACCESS = re.compile(r"(Read|Write) access at (.*)\+0x([0-9a-f]+) in (\S+)")
OPERATIONS = {"Read": ("LDS", "LDSM", "ATOMS"), "Write": ("STS", "ATOMS", "LDGSTS")}


def reported_pairs(report):
    """{((kind, address, source line), the same of the other access): function} of all "Race reported" blocks."""
    pairs, first = {}, None
    for line in report.splitlines():
        access = ACCESS.search(line)
        if not access:
            continue
        place = (access[1], int(access[3], 16), access[4])
        if "Race reported between" in line:
            first = place
        elif first is not None:
            pairs[first, place] = access[2]
    return pairs


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
    def __init__(self, code):
        self.code = code
        self.place = {address: index for index, (address, *_) in enumerate(code)}
        self._stretches = None

    def holds(self, access):
        kind, address, _ = access
        index = self.place.get(address)
        if index is None or self.code[index][2].split(".")[0] not in OPERATIONS[kind]:
            return False
        return any(address in stretch for stretch in self.stretches())  # not in a function that is called, which isn't walked

    def stretches(self):
        """What the program may come to between one barrier and the next, for each barrier and for the kernel's begin."""
        if self._stretches is None:
            begins = [0] + [index + 1 for index, instruction in enumerate(self.code) if is_barrier(instruction)]
            self._stretches = [reached(self.code, self.place, begin) for begin in begins]
        return self._stretches

    def keeps_apart(self, one, other):
        return not any(one[1] in stretch and other[1] in stretch for stretch in self.stretches())


def explain(pairs, kernels):
    """(source lines, "kept apart" | "NOT kept apart" | "not found") of each pair. A pair belongs to any kernel that has such
    accesses there; all of them must keep it apart."""
    for one, other in pairs:
        holders = [kernel for kernel in kernels if kernel.holds(one) and kernel.holds(other)]
        apart = all(kernel.keeps_apart(one, other) for kernel in holders)
        yield (one[2], other[2]), "not found" if not holders else "kept apart" if apart else "NOT kept apart"


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--cuobjdump", default="cuobjdump")
    arguments.add_argument("--kernel", default="", metavar="NAME")
    arguments.add_argument("--binary", required=True)
    arguments.add_argument("reports", nargs="+", metavar="REPORT")
    options = arguments.parse_args()
    pairs = {}
    for path in options.reports:
        with open(path, encoding="utf-8", errors="replace") as file:
            pairs.update(reported_pairs(file.read()))
    run = subprocess.run([options.cuobjdump, "-sass", options.binary], capture_output=True, text=True, check=True)
    kernels = [Kernel(code) for name, code in functions(run.stdout) if options.kernel in name]
    results = Counter(explain(pairs, kernels))
    for ((one, other), result), count in sorted(results.items()):
        print(f"{one} and {other}: {count} pairs of instructions {result}")
    wrong = sum(count for (_, result), count in results.items() if result != "kept apart")
    print(f"{len(pairs)} pairs, {wrong} not kept apart by barriers of the whole CTA; {len(kernels)} kernels read")
    return 1 if wrong or not pairs else 0


if __name__ == "__main__":
    sys.exit(main())
