#!/usr/bin/env python3
"""Writes src/text/unicode_normalization_gap.h: code points that normalization changes or reorders in current Unicode, but
not in the `tokenizers` package, whose normalization data is Unicode 9. Models were trained on what the package makes.
Needs the tokenizers package. Measured, not read: each code point is tried for reordering and for decomposition.
"""
import pathlib
import unicodedata

from tokenizers import normalizers

# Combining marks newer than this Python's Unicode 14, and the second half of the one newer composition (U+11938).
NEWER_MARKS = [(0x0ECE, 0x0ECE), (0x11930, 0x11930), (0x10EFD, 0x10EFF), (0x11F41, 0x11F42), (0x1E4EC, 0x1E4EF)]


def package_knows(c):
    character = chr(c)
    if unicodedata.combining(character):
        for neighbour in ("\u0334", "\u0345"):  # classes 1 and 240
            for text in ("a" + neighbour + character, "a" + character + neighbour):
                if unicodedata.normalize("NFD", text) != normalizers.NFD().normalize_str(text):
                    return False
    for form, normalizer in (("NFD", normalizers.NFD()), ("NFKD", normalizers.NFKD())):
        if unicodedata.normalize(form, character) != normalizer.normalize_str(character):
            return False
    return True


def main():
    ranges = [list(r) for r in NEWER_MARKS]
    for c in range(0x80, 0x110000):
        character = chr(c)
        if unicodedata.category(character) in ("Cn", "Cs", "Co"):
            continue
        if not (unicodedata.combining(character) or unicodedata.decomposition(character)) or package_knows(c):
            continue
        ranges.append([c, c])
    ranges.sort()
    merged = []
    for low, high in ranges:
        if merged and merged[-1][1] + 1 == low:
            merged[-1][1] = high
        else:
            merged.append([low, high])
    cells = [f"{{0x{low:X}, 0x{high:X}}}" for low, high in merged]
    lines, line = [], "   "
    for cell in cells:
        if len(line) + len(cell) + 2 > 118:
            lines.append(line)
            line = "   "
        line += " " + cell + ","
    lines.append(line)
    path = pathlib.Path(__file__).parent.parent / "src" / "text" / "unicode_normalization_gap.h"
    path.write_text("""// Code points that normalization leaves alone in the `tokenizers` package (its data is Unicode 9) though newer Unicode
// decomposes or reorders them. Written by tools/make_unicode_normalization_gap.py; not edited by hand.
#pragma once

namespace tensorfold::unicode {

struct CodePointRange {
  char32_t first, last;
};

inline constexpr CodePointRange kNormalizationGap[] = {
""" + "\n".join(lines) + """
};

}  // namespace tensorfold::unicode
""")
    print(len(merged), "ranges")


if __name__ == "__main__":
    main()
