#!/usr/bin/env python3
"""A GGUF file with another file's header and random weights of the same shapes and formats.

Where a model can't be copied to, its speed can be: decoding does the same work whatever the weights are.

    synthesise_gguf.py header SOURCE.gguf HEADER      keeps everything before the tensor data (a few MB)
    synthesise_gguf.py fill HEADER OUTPUT.gguf        appends random data; block scales are small finite numbers
"""
import struct
import sys

import numpy as np

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
# type: (elements, bytes, offsets of fp16 scales inside a block)
BLOCKS = {0: (1, 4, None), 1: (1, 2, None), 2: (32, 18, [0]), 3: (32, 20, [0, 2]), 6: (32, 22, [0]),
          7: (32, 24, [0, 2]), 8: (32, 34, [0]), 12: (256, 144, [0, 2]), 13: (256, 176, [0, 2]), 14: (256, 210, [208])}


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, code):
        value = struct.unpack_from("<" + code, self.data, self.at)[0]
        self.at += struct.calcsize("<" + code)
        return value

    def text(self):
        length = self.take("Q")
        self.at += length
        return self.data[self.at - length:self.at].decode("utf-8", "replace")

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            inner, count = self.take("I"), self.take("Q")
            return [self.value(inner) for _ in range(count)]
        return self.take(SCALARS[kind])


def parse(data):
    reader = Reader(data)
    assert data[:4] == b"GGUF"
    reader.at = 8
    tensors, pairs = reader.take("Q"), reader.take("Q")
    alignment = 32
    for _ in range(pairs):
        key, kind = reader.text(), reader.take("I")
        value = reader.value(kind)
        if key == "general.alignment":
            alignment = value
    infos = []
    for _ in range(tensors):
        name = reader.text()
        dims = [reader.take("Q") for _ in range(reader.take("I"))]
        kind, offset = reader.take("I"), reader.take("Q")
        elements, size, scales = BLOCKS[kind]
        infos.append((name, offset, int(np.prod(dims)) // elements, size, scales, kind))
    return infos, (reader.at + alignment - 1) // alignment * alignment


def main():
    mode, source, target = sys.argv[1:4]
    if mode == "header":
        with open(source, "rb") as file:
            data = file.read(64 << 20)
        infos, start = parse(data)
        open(target, "wb").write(data[:start])
        return
    data = open(source, "rb").read()
    infos, start = parse(data)
    random = np.random.default_rng(1)
    with open(target, "wb") as out:
        out.write(data.ljust(start, b"\0"))
        for name, offset, blocks, size, scales, kind in infos:
            out.seek(start + offset)
            if kind in (0, 1):
                values = random.normal(1.0 if "norm" in name else 0.0, 0.02, blocks)
                out.write(values.astype(np.float32 if kind == 0 else np.float16).tobytes())
                continue
            chunk = 1 << 18
            for first in range(0, blocks, chunk):
                part = random.integers(0, 256, (min(chunk, blocks - first), size), dtype=np.uint8)
                for at in scales:
                    part[:, at:at + 2] = np.frombuffer(np.float16(0.001).tobytes(), np.uint8)
                out.write(part.tobytes())


main()
