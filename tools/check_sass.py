#!/usr/bin/env python3
"""Looks in compiled CUDA objects for two defects of ptxas 13.0 (sm_90a) that no warning tells of; both were met on an H200.

1. wgmma reads A from registers while later instructions run, but ptxas treats those registers as free at once and may put
   other values there before the wgmma.wait_group that ends the group: one launch in fifty had wrong bits. The source must
   load a fragment only after the wait for its registers' last reader; this checks that the compiler kept to it.
2. LDGSTS (cp.async) with an address of register plus uniform register, which the GPU refuses as an illegal instruction.

    tools/check_sass.py [--cuobjdump PATH] OBJECT...      exit status 1 when something is found, or no kernel at all
"""

import argparse
import re
import subprocess
import sys

INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P[T\d]+\s+)?(\S+)\s*(.*?);")
WITHOUT_RESULT = ("ST", "BRA", "ISETP", "BAR", "SYNCS", "RED", "FSETP", "PLOP", "R2UR", "VOTE")
LOOP_LENGTH_MAX = 4000  # instructions


def functions(disassembly):
    """(name, [(address, operation, operands)]) of each kernel."""
    for text in re.split(r"\n\s*Function : ", disassembly)[1:]:
        lines = text.split("\n")
        matches = (INSTRUCTION.match(line) for line in lines)
        yield lines[0].strip(), [(int(m[1], 16), m[2], m[3]) for m in matches if m]


def written_registers(operation, operands):
    target = re.match(r"R(\d+)", operands)
    if not target or operation.startswith(WITHOUT_RESULT):
        return set()
    first = int(target[1])
    width = 4 if ".128" in operation else 2 if ".64" in operation or "WIDE" in operation else 1
    return set(range(first, first + width))


def loops_with_wgmma(code):
    """Bodies of loops, inner and outer ones."""
    place = {address: index for index, (address, _, _) in enumerate(code)}
    found = []
    for end, (address, operation, operands) in enumerate(code):
        target = re.search(r"0x([0-9a-f]+)", operands) if operation.startswith("BRA") else None
        begin = place.get(int(target[1], 16)) if target else None
        if begin is None or begin >= end or end - begin > LOOP_LENGTH_MAX:
            continue
        body = code[begin : end + 1]
        if any(entry[1].startswith("HGMMA") for entry in body):
            found.append(body)
    return found


def overwritten_fragments(body):
    """Walks the loop three times with the groups of wgmma that may still run."""
    groups, current, found = [], set(), []
    for address, operation, operands in body * 3:
        if operation.startswith("HGMMA"):
            registers = re.findall(r"\bR(\d+)\b", operands)
            if "gdesc" in operands and len(registers) == 3:  # D, A, C; with A in shared memory only D and C
                current |= set(range(int(registers[1]), int(registers[1]) + 4))
            if "gsb0" in operands:
                groups.append(current)
                current = set()
            continue
        wait = re.match(r"gsb0, 0x([0-9a-f]+)", operands) if "DEPBAR" in operation else None
        if wait:
            pending = int(wait[1], 16)
            groups = groups[len(groups) - pending :] if 0 < pending < len(groups) else groups if pending else []
            continue
        for group in [*groups, current]:
            if written_registers(operation, operands) & group:
                found.append(f"{address:#x} {operation} {operands}")
    return sorted(set(found))


def check(path, cuobjdump):
    run = subprocess.run([cuobjdump, "-sass", path], capture_output=True, text=True, check=True)
    kernels = defects = 0
    for name, code in functions(run.stdout):
        kernels += 1
        for body in loops_with_wgmma(code):
            lines = overwritten_fragments(body)
            if lines:
                defects += 1
                print(f"{path}: {name}: fragments of a running wgmma are overwritten at {'; '.join(lines[:3])}")
        for address, operation, operands in code:
            if operation.startswith("LDGSTS") and re.match(r"(desc\[\S+\])?\[R\d+\+UR", operands):
                defects += 1
                print(f"{path}: {name}: {address:#x} {operation} {operands} can't run")
    print(f"{path}: {kernels} kernels, {defects} defects")
    return kernels, defects


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--cuobjdump", default="cuobjdump")
    arguments.add_argument("objects", nargs="+", metavar="OBJECT")
    options = arguments.parse_args()
    kernels, defects = map(sum, zip(*(check(path, options.cuobjdump) for path in options.objects)))
    return 1 if defects or kernels == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
