#!/usr/bin/env python3
"""Checks that classes which stand before another object of their interface forward every function of it: one that has a
default would otherwise run that default, and nothing would tell."""
import pathlib
import re
import sys

SOURCE = pathlib.Path(__file__).resolve().parent.parent / "src"
FORWARDERS = [  # interface, its file, who forwards it
    ("Backend", "ops/backend.h", "engine/measure/selective_backend.h"),
    ("LanguageModel", "model/language_model.h", "engine/borrowed_model.h"),
]
VIRTUAL = re.compile(r"virtual\s+[^;{=]*?\b(\w+)\(")
OVERRIDE = re.compile(r"\b(\w+)\([^;{}]*\)\s*(?:const\s*)?override")


def class_body(text, name):
    start = re.search(rf"^class {name} {{", text, re.MULTILINE).start()
    return text[start:text.index("\n};", start)]


def main():
    problems, count = [], 0
    for interface, declared_in, forwarded_in in FORWARDERS:
        functions = set(VIRTUAL.findall(class_body((SOURCE / declared_in).read_text(), interface))) - {interface}
        forwarded = set(OVERRIDE.findall((SOURCE / forwarded_in).read_text()))
        count += len(functions)
        problems += [f"{forwarded_in}: {name}() of {interface} is not forwarded" for name in sorted(functions - forwarded)]
    print("\n".join(problems) if problems else f"{count} functions are forwarded")
    return 1 if problems or count < 20 else 0


sys.exit(main())
