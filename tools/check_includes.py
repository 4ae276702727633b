#!/usr/bin/env python3
"""Checks that include directions follow docs/architecture.md: each room may include itself and the rooms listed here."""
import pathlib
import re
import sys

ALLOWED = {
    "base": set(),
    "checkpoint": {"base"},
    "hub": {"base"},
    "text": {"base"},
    "grammar": {"base"},
    # checkpoint/weight_format.h is plain data about how weights lie in a file; kernels pack from it.
    "ops": {"base", "checkpoint/weight_format.h"},
    "model": {"base", "ops", "checkpoint"},
    "convert": {"base", "model", "checkpoint"},
    "engine": {"base", "model", "ops"},
    "serve": {"base", "engine", "model", "ops", "text", "hub", "grammar", "checkpoint"},
    "cli": {"base", "convert", "serve", "engine", "model", "ops", "text", "hub", "grammar", "checkpoint"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def main():
    source = pathlib.Path(__file__).resolve().parent.parent / "src"
    problems = []
    count = 0
    for path in sorted(source.rglob("*")):
        if path.suffix not in {".h", ".cpp", ".cu", ".cuh", ".inl"}:
            continue
        room = path.relative_to(source).parts[0]
        for target in INCLUDE.findall(path.read_text()):
            count += 1
            if not (source / target).exists():
                problems.append(f"{path.relative_to(source)}: \"{target}\" is not a path from src/")
                continue
            other = target.split("/")[0]
            if other != room and other not in ALLOWED[room] and target not in ALLOWED[room]:
                problems.append(f"{path.relative_to(source)}: {room} must not include {target}")
        if room == "model" and "families" in path.parts and "/cpu/" in path.read_text():
            problems.append(f"{path.relative_to(source)}: a family knows no backend")
    print("\n".join(problems) if problems else f"{count} includes follow the dependency direction")
    return 1 if problems or count == 0 else 0


sys.exit(main())
