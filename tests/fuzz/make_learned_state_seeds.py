"""Writes the seeds of the learned_state fuzz target: a state file's header and a manifest as the disk store makes them.

Usage: python3 tests/fuzz/make_learned_state_seeds.py
"""

import pathlib
import struct
import zlib

OUT = pathlib.Path(__file__).parent / "corpus" / "learned_state"


def state(begin, end, groups, snapshot, parent):
    identity, scope = b"0123abcd llama cpu arithmetic 1 page 64 [0 2 0 4096 0]", b"key -"
    tokens = [(i * 7) % 53 for i in range(begin, end)]
    body = struct.pack("<QQIIQIIII", 9, parent, begin, end, snapshot, len(identity), len(scope), len(groups), 0)
    body += identity + scope + struct.pack(f"<{len(tokens)}i", *tokens)
    pages = 0
    for first, blocks, page_bytes in groups:
        body += struct.pack("<IIQ", first, blocks, page_bytes)
        pages += blocks
    checks = pages + (1 if snapshot else 0)
    body += struct.pack(f"<{checks}I", *range(1, checks + 1))
    payload = snapshot + sum(blocks * page_bytes for _, blocks, page_bytes in groups)
    header = b"TFSTATE\x01" + struct.pack("<II", len(body) + 16, zlib.crc32(body)) + body
    return b"\x00" + header + struct.pack("<Q", payload)


def record(body):
    return struct.pack("<II", len(body), zlib.crc32(body)) + body


def added(id_, parent, begin, end):
    identity, scope = b"i", b"s"
    tokens = [(i * 7) % 53 for i in range(begin, end)]
    body = struct.pack("<BQQIIBQQII", 1, id_, parent, begin, end, 1, 1000, id_, len(identity), len(scope))
    return record(body + identity + scope + struct.pack(f"<{len(tokens)}i", *tokens))


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "state_first").write_bytes(state(0, 70, [(0, 2, 4096)], 0, 0))
    (OUT / "state_next").write_bytes(state(64, 150, [(1, 2, 4096), (0, 0, 0), (2, 1, 2048)], 12, 3))
    manifest = b"TFLEARN\x01" + added(1, 0, 0, 70) + added(2, 1, 64, 130)
    manifest += record(struct.pack("<BQQ", 3, 1, 9)) + record(struct.pack("<BIQ", 4, 20000, 77))
    manifest += record(struct.pack("<BQ", 2, 2))
    (OUT / "manifest").write_bytes(b"\x01" + manifest)


if __name__ == "__main__":
    main()
