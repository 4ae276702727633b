#!/usr/bin/env python3
"""Checks the objects that are compiled for one instruction set (*_avx2.cpp, *_avx512.cpp, *_avx512_bf16.cpp, *_amx.cpp, ...).

An inline function of a shared header that such an object emits as a weak symbol may be the copy the linker keeps, and
then baseline code runs instructions that the machine may not have. So every weak symbol of these objects must live in the
instruction set's own namespace.

usage: check_kernel_symbols.py BUILD_FOLDER
"""
import pathlib
import re
import subprocess
import sys

OBJECT = re.compile(r"_(avx2|avx512|avx512_bf16|amx|neon)\.cpp\.o$")


def main():
    build = pathlib.Path(sys.argv[1])
    problems, objects = [], 0
    for path in sorted(build.rglob("*.o")):
        match = OBJECT.search(path.name)
        if not match or "src" not in path.parts:
            continue
        objects += 1
        listing = subprocess.run(["nm", "-C", path], capture_output=True, text=True, check=True).stdout
        for line in listing.splitlines():
            fields = line.split(maxsplit=2)
            if len(fields) == 3 and fields[1] in "WVu" and f"{match.group(1)}" not in fields[2]:
                problems.append(f"{path.name}: weak symbol outside its namespace: {fields[2]}")
    print("\n".join(problems) if problems else f"{objects} kernel objects export no weak symbol outside their namespace")
    return 1 if problems or objects == 0 else 0


sys.exit(main())
