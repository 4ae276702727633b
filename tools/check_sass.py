#!/usr/bin/env python3
"""Looks in compiled CUDA objects for three things that ptxas 13.0 does (sm_90a) and no error tells of: two defects, which were met
on an H200, and kernels that it made slow.

1. wgmma reads A from registers while later instructions run, but ptxas treats those registers as free at once and may put
   other values there before the wgmma.wait_group that ends the group: one launch in fifty had wrong bits. The source must
   load a fragment only after the wait for its registers' last reader; this checks, on every way through the code, that the compiler
   kept to it, and that nothing touches the sums of a wgmma that runs. Called functions are walked as well. A kernel with wgmma
   whose ways can't all be known (a jump to a computed address, a call that starts a wgmma) fails.
2. LDGSTS (cp.async) with an address of register plus uniform register, which the GPU refuses as an illegal instruction.
3. Each wgmma a group of its own, waited for at once: where something other than a wgmma writes to registers of sums, ptxas
   serialises all of the kernel's ("C7515", an information that fails no build), and nothing overlaps with the tensor cores. Our
   kernels have several wgmma in a group.

    tools/check_sass.py [--cuobjdump PATH] OBJECT...      exit status 1 when something is found, or no kernel at all
"""

import argparse
import re
import subprocess
import sys

INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?(\S+)\s*(.*?);")
WITHOUT_RESULT = ("ST", "BRA", "BAR", "BSSY", "BSYNC", "BREAK", "CALL", "CCTL", "DEPBAR", "ERRBAR", "EXIT", "FENCE", "LDGDEPBAR",
                  "LDGSTS", "MEMBAR", "NOP", "R2UR", "RED", "RET", "SYNCS", "UBLK", "USETMAXREG", "WARP", "YIELD")
STATES_MAX = 2_000_000  # of a kernel: an instruction, and what may run there


def functions(disassembly):
    """(name, [(address, is predicated, operation, operands)]) of each kernel."""
    for text in re.split(r"\n\s*Function : ", disassembly)[1:]:
        lines = text.split("\n")
        matches = (INSTRUCTION.match(line) for line in lines)
        yield lines[0].strip(), [(int(m[1], 16), m[2] is not None, m[3], m[4]) for m in matches if m]


def registers_from(first, count):
    return frozenset(range(first, first + count))


def written_registers(operation, operands):
    """Of the operands, those before the first that is no register or predicate are results; the first register counts."""
    if operation.startswith(WITHOUT_RESULT):
        return frozenset()
    for operand in operands.split(","):
        register = re.fullmatch(r"R(\d+)", operand.strip())
        if register:
            width = 4 if ".128" in operation else 2 if ".64" in operation or "WIDE" in operation else 1
            return registers_from(int(register[1]), width)
        if not re.fullmatch(r"U?PT|U?P\d+", operand.strip()):
            break
    return frozenset()


def wgmma_registers(operation, operands):
    """(A fragments, sums) that the instruction reads and adds to while it runs."""
    sums, second = (part.strip() for part in operands.split(",")[:2])
    count = int(re.search(r"64x(\d+)x", operation)[1]) // 2
    fragments = re.match(r"R(\d+)", second)
    return (registers_from(int(fragments[1]), 4) if fragments else frozenset(), registers_from(int(sums[1:]), count))


class UnknownWay(Exception):
    """The code goes on where a listing doesn't tell."""


def called(code, place, index):
    """The function that an instruction calls, as the index of its first instruction; None where it calls none."""
    address, _, operation, operands = code[index]
    if not operation.startswith("CALL"):
        return None
    target = re.fullmatch(r"0x([0-9a-f]+)", operands.strip())
    if target is None or int(target[1], 16) not in place:
        raise UnknownWay(f"{address:#x} {operation} {operands}")
    return place[int(target[1], 16)]


def following(code, place, index):
    """Where the program may go on. A call goes on in its function and behind itself, so a return leads nowhere: whoever walks
    so has to see to it that functions do nothing that matters after they return (functions_called)."""
    address, predicated, operation, operands = code[index]
    if operation.startswith(("EXIT", "RET")):
        return [index + 1] if predicated else []
    function = called(code, place, index)
    if function is not None:
        return [function, index + 1]
    if operation.startswith(("BRX", "JMX", "JMP")):
        raise UnknownWay(f"{address:#x} {operation} {operands}")
    if not operation.startswith("BRA"):
        return [index + 1]
    target = re.search(r"0x([0-9a-f]+)", operands)
    if target is None or int(target[1], 16) not in place:
        raise UnknownWay(f"{address:#x} {operation} {operands}")
    always = not predicated and "." not in operation and re.fullmatch(r"0x[0-9a-f]+", operands.strip())
    return [place[int(target[1], 16)], *([] if always else [index + 1])]


def functions_called(code, place):
    """Indices of all instructions of the functions that a kernel calls, and of those that they call."""
    waiting, seen = [called(code, place, index) for index in range(len(code))], set()
    while waiting:
        index = waiting.pop()
        if index is None or index in seen or index >= len(code):
            continue
        seen.add(index)
        waiting += following(code, place, index)
    return seen


def disturbed_wgmma(code):
    """Instructions that write fragments, or touch sums, of a wgmma that may still run: on every way through the code, with the
    groups that haven't been waited for."""
    if not any(operation.startswith("HGMMA") for _, _, operation, _ in code):
        return []
    place = {address: index for index, (address, *_) in enumerate(code)}
    for index in functions_called(code, place):
        if code[index][2].startswith("HGMMA"):  # it may run when the function returns
            raise UnknownWay(f"{code[index][0]:#x} {code[index][2]} in a function that is called")
    nothing = (frozenset(), frozenset())
    waiting, seen, found = [(0, (), nothing)], set(), {}
    while waiting:
        state = waiting.pop()
        index, groups, current = state
        if state in seen or index >= len(code):
            continue
        seen.add(state)
        if len(seen) > STATES_MAX:
            sys.exit("more ways through a kernel than can be walked")
        address, _, operation, operands = code[index]
        wait = re.match(r"gsb0, 0x([0-9a-f]+)", operands) if "DEPBAR" in operation else None
        if operation.startswith("HGMMA"):
            fragments, sums = wgmma_registers(operation, operands)
            current = (current[0] | fragments, current[1] | sums)
            if "gsb0" in operands:
                groups, current = (*groups, current), nothing
        elif wait:
            pending = int(wait[1], 16)
            groups = groups[-pending:] if pending else ()
        elif groups or current != nothing:
            written = written_registers(operation, operands)
            touched = written | frozenset(int(number) for number in re.findall(r"\bR(\d+)\b", operands))
            if any(written & fragments or touched & sums for fragments, sums in (*groups, current)):
                found[address] = f"{address:#x} {operation} {operands}"
        waiting += [(after, groups, current) for after in following(code, place, index)]
    return [found[address] for address in sorted(found)]


def is_serialised(code):
    products = [operands for _, _, operation, operands in code if operation.startswith("HGMMA")]
    return len(products) > 1 and all("gsb0" in operands for operands in products)


def check(path, cuobjdump):
    run = subprocess.run([cuobjdump, "-sass", path], capture_output=True, text=True, check=True)
    kernels = defects = 0
    for name, code in functions(run.stdout):
        kernels += 1
        try:
            lines = disturbed_wgmma(code)
        except UnknownWay as way:
            defects += 1
            lines = []
            print(f"{path}: {name}: can't be checked: {way}")
        if lines:
            defects += 1
            print(f"{path}: {name}: registers of a running wgmma are touched at {'; '.join(lines[:3])}")
        if is_serialised(code):
            defects += 1
            print(f"{path}: {name}: ptxas makes each wgmma wait for the one before (compile it alone: C7515 says why)")
        for address, _, operation, operands in code:
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
