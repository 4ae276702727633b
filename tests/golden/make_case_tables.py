"""Writes src/text/jinja_unicode_tables.h from this Python's own Unicode tables: the case mappings and the printable
ranges that str.upper(), str.lower(), str.title() and repr() use, so that the template engine's agree with them."""

import pathlib
import sys
import unicodedata

LAST = 0x110000


def code_points():
    return (code for code in range(LAST) if not 0xD800 <= code < 0xE000)


def simple_ranges(mapping):
    """Runs of (first, last, stride, delta) of one-to-one mappings, first ascending."""
    ranges = []
    for code, target in mapping:
        delta = target - code
        if ranges:
            first, last, stride, range_delta = ranges[-1]
            step = code - last
            if delta == range_delta and step in (1, 2) and (first == last or step == stride):
                ranges[-1] = (first, code, step, delta)
                continue
        ranges.append((code, code, 1, delta))
    return ranges


def mapping_tables(name, convert):
    simple, special = [], []
    for code in code_points():
        text = chr(code)
        target = convert(text)
        if target == text:
            continue
        if len(target) == 1:
            simple.append((code, ord(target)))
        else:
            special.append((code, [ord(c) for c in target] + [0] * (3 - len(target))))
    lines = [f"inline constexpr CaseRange k{name}Ranges[] = {{"]
    lines += [f"    {{0x{f:x}, 0x{l:x}, {s}, {d}}}," for f, l, s, d in simple_ranges(simple)]
    lines += ["};"]
    if special:
        lines += [f"inline constexpr CaseExpansion k{name}Expansions[] = {{"]
        lines += [f"    {{0x{c:x}, {{0x{t[0]:x}, 0x{t[1]:x}, 0x{t[2]:x}}}}}," for c, t in special]
        lines += ["};"]
    return lines


def property_ranges(name, predicate):
    lines, start = [], None
    for code in range(LAST + 1):
        inside = code < LAST and predicate(code)
        if inside and start is None:
            start = code
        if not inside and start is not None:
            lines.append(f"    {{0x{start:x}, 0x{code - 1:x}}},")
            start = None
    return [f"inline constexpr CodeRange k{name}Ranges[] = {{"] + lines + ["};"]


def main():
    out = [
        "// Case mappings and character classes as Python has them, for the template engine's string methods. Written by",
        f"// tests/golden/make_case_tables.py (Unicode {unicodedata.unidata_version}); don't edit.",
        "#pragma once",
        "",
        "#include <cstdint>",
        "",
        "namespace tensorfold::jinja {",
        "",
        "struct CaseRange {",
        "  std::uint32_t first, last, stride;",
        "  std::int32_t delta;",
        "};",
        "struct CaseExpansion {",
        "  std::uint32_t code;",
        "  std::uint32_t targets[3];  // zero: unused",
        "};",
        "struct CodeRange {",
        "  std::uint32_t first, last;",
        "};",
        "",
    ]
    out += mapping_tables("Upper", str.upper)
    out += mapping_tables("Lower", str.lower)
    out += mapping_tables("Title", str.title)
    out += property_ranges("Unprintable", lambda c: not chr(c).isprintable())
    # A letter with case: title() and lower()'s final sigma look at it. Found by what title() does to a letter after it.
    out += property_ranges("Cased", lambda c: not 0xD800 <= c < 0xE000 and (chr(c) + "a").title()[-1] == "a")
    out += property_ranges("Alphanumeric", lambda c: chr(c).isalnum())
    out += property_ranges("Alphabetic", lambda c: chr(c).isalpha())
    out += ["", "}  // namespace tensorfold::jinja"]
    pathlib.Path(sys.argv[1]).write_text("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
