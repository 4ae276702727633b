#!/usr/bin/env python3
"""Writes the seed corpus of recall_fuzz: whole, torn and damaged segments, made from the format's description alone."""
import pathlib
import struct
import zlib

FOLDER = pathlib.Path(__file__).parent / "corpus" / "recall"
IDENTITY = bytes(range(16))


def header(number, version=1, identity=IDENTITY):
    fields = struct.pack("<Q16s", number, identity)
    return b"TFRECALL" + struct.pack("<II", version, zlib.crc32(fields)) + fields


def record(tokens, scope=(1, 2)):
    body = struct.pack(f"<{len(tokens)}i", *tokens)
    fields = b"TFRR" + struct.pack("<IQQI", len(tokens), *scope, zlib.crc32(body))
    return fields + struct.pack("<I", zlib.crc32(fields)) + body


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    texts = [list(range(20)), [7] * 12, [i * 37 % 1000 for i in range(60)]]
    whole = header(3) + b"".join(record(text, (i, 9)) for i, text in enumerate(texts))
    nested = list(struct.unpack("<15i", record(list(range(7)))))  # a record inside a record's tokens
    seeds = {
        "whole": whole,
        "empty": header(1),
        "torn": whole[:-17],
        "damaged": whole[:100] + b"\xff\xff\xff" + whole[103:],
        "outside_vocabulary": header(1) + record([1, 2, 5000]) + record([1, 2, -4]) + record(list(range(9))),
        "other_version": header(1, version=2) + record([1, 2, 3]),
        "nested": header(1) + record(nested) + record(nested)[:40],
    }
    for name, data in seeds.items():
        (FOLDER / name).write_bytes(data)


if __name__ == "__main__":
    main()
