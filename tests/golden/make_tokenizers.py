#!/usr/bin/env python3
"""Writes tests/golden/tokenizers: what the `tokenizers` package makes of a corpus and of seeded random strings, for the
five models of ../shared/data/tokenizers.tar.xz. Needs tokenizers==0.23.3 (in a virtual environment) and the archive
unpacked: make_tokenizers.py UNPACKED_DIRECTORY. The C++ test generates the same random strings from the seed, so that only
hashes of the ids are stored; the generator's twin is tests/text/tokenizer_golden_test.cpp.
"""
import json
import pathlib
import sys
import unicodedata

import tokenizers

MODELS = ["qwen3", "llama3", "gptoss", "deepseek_v3", "gemma3"]
SEED = 20261129
STRING_COUNT = 10_000
BATCH = 100
SEQUENCE_COUNT = 1_000
MASK = (1 << 64) - 1
SPACES = [0x20, 0x20, 0x20, 0x09, 0x0A, 0x0D, 0x0B, 0x0C, 0x85, 0xA0, 0x1680, 0x2003, 0x2028, 0x2029, 0x202F, 0x3000,
          0x180E, 0x200B, 0x1C, 0x1F]
SNIPPETS = ["'s", "'T", "'re", "'VE", "'ll", "'D", "'\u017f", " the", "Hello", "WORLD", "camelCase", "123", "4567890", "//",
            "\r\n", "  ", "</s>", "e\u0301", "\u1112\u1161\u11ab", "\U0001F468\u200D\U0001F469\u200D\U0001F467", "\u2581", "<0x41>"]


class Random:
    """splitmix64"""

    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def below(self, count):
        return self.next() % count


def assigned_ranges():
    """Code points assigned in this Python's Unicode version (the oldest among the libraries), without surrogates."""
    ranges = []
    for c in range(0x110000):
        if unicodedata.category(chr(c)) in ("Cn", "Cs"):
            continue
        if ranges and ranges[-1][1] == c - 1:
            ranges[-1][1] = c
        else:
            ranges.append([c, c])
    return ranges


def random_string(random, ranges):
    out = ""
    for _ in range(1 + random.below(40)):
        kind = random.below(10)
        if kind < 4:
            low, high = ranges[random.below(len(ranges))]
            out += chr(low + random.below(high - low + 1))
        elif kind < 6:
            out += chr(0x21 + random.below(0x5E))
        elif kind < 8:
            out += chr(SPACES[random.below(len(SPACES))])
        elif kind < 9:
            out += SNIPPETS[random.below(len(SNIPPETS))]
        elif out:
            out += out[-1] * random.below(5)
    return out


def fnv(data, value=0xCBF29CE484222325):
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def hash_ids(ids, value):
    return fnv(b"".join(i.to_bytes(4, "little") for i in ids) + b"\xff\xff\xff\xff", value)


def corpus():
    texts = [
        "", " ", "Hello world", "The quick brown fox jumps over the lazy dog. It's 10:45, isn't it? We'LL see; they've 'gone'.",
        "def fold(row, n=1_000):\n    \"\"\"Doc.\"\"\"\n    return [x ** 2 for x in row if x % 3 == 0]\n\n\nclass A(B): pass\n",
        "#include <vector>\nint main(int argc, char** argv) {\r\n\treturn argc > 1 ? 0x7fFF : -1;\t// ok\r\n}\r\n",
        "   leading", "trailing   ", "a  b   c    d     e", "\n", "\n\n\n", " \n \n\n  x", "\t\tx\t y", "\r\n\r\n a", "x \u00a0 y\u3000z \u2028 w",
        "a\u200bb\ufeffc", "1 12 123 1234 12345 3.14159 1,000,000 \u0663\u0664\u0665 \u2167 \u00bd \u2075", "\u0001\u0002\x1b[31m\x7f\x00 end",
        "$100 + 50% = <x> & {y} | ~z^2 @me #tag `code` \\n", "!!!??? ... --- === *** ((())) [[]]",
        "I'm you're he'S WE'VE 'tis o'clock dogs' '\u017f 'D'd", "camelCaseHTTPServer XMLHttpRequest iPhone eBay McDonald",
        "https://example.org/a/b?c=d&e=%20f#g user@host.org /usr/lib/x86_64-linux-gnu",
        "e\u0301 \u00e9 a\u0323\u0307 a\u0307\u0323 \u1e69 s\u0323\u0307 \u212b \u2126 \ufb01 \uac00 \u1100\u1161\u11a8 \u0958",
        "Z\u0351\u036b\u0343a\u0323\u0309l\u0348\u0300g\u0321o\u0489", "\u0301 starts with a mark", "x\u0300\u0301\u0302\u0303\u0304\u0305" * 6,
        "\U0001F468\u200D\U0001F469\u200D\U0001F467\u200D\U0001F466 \U0001F3F3\uFE0F\u200D\U0001F308 \U0001F1E9\U0001F1EA \U0001F44D\U0001F3FD \u2764\uFE0F \U0001FAE0",
        "\U0001D54F\U0001D7D8 \u24D0\u24D1 \u2460 \uFF21\uFF42\uFF11 \u00b2\u00b3", "<|endoftext|> <|im_start|>user\nhi<|im_end|>\n<think>\n\n</think>",
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>", "<bos><start_of_turn>user\nhi<end_of_turn>\n<eos><unused7>",
        "<\uff5cbegin\u2581of\u2581sentence\uff5c><\uff5cUser\uff5c>hi<\uff5cAssistant\uff5c><think>\n</think>", "<|start|>assistant<|channel|>final<|message|>x<|return|>",
        "<s></s><unk><pad><mask> <0x41><0xE2> \u2581\u2581under\u2581score", "<|im_start", "<table><tr><td>x</td></tr></table>", "a" * 300, "ab" * 500, " " * 100, "\n" * 70, "\u4e00" * 200, "=" * 100,
        "\uffff \U0010ffff \ue000 \ufffd \U000F0000",
    ]
    scripts = [
        "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u041a\u0430\u043a \u0434\u0435\u043b\u0430?", "\u0393\u03b5\u03b9\u03b1 \u03c3\u03bf\u03c5 \u039a\u03cc\u03c3\u03bc\u03b5",
        "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645 \u0661\u0662\u0663\u060c \u0643\u064e\u062a\u064e\u0628\u064e", "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd \u05e2\u05d5\u05dc\u05dd",
        "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e \u0967\u0968\u0969", "\u09b9\u09cd\u09af\u09be\u09b2\u09cb \u09ac\u09bf\u09b6\u09cd\u09ac", "\u0bb5\u0ba3\u0b95\u0bcd\u0b95\u0bae\u0bcd \u0b89\u0bb2\u0b95\u0bae\u0bcd",
        "\u0c39\u0c32\u0c4b \u0c2a\u0c4d\u0c30\u0c2a\u0c02\u0c1a\u0c02", "\u0cb9\u0cb2\u0ccb \u0cb5\u0cbf\u0cb6\u0ccd\u0cb5", "\u0d39\u0d32\u0d4b \u0d32\u0d4b\u0d15\u0d02", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01 \u0e51\u0e52\u0e53",
        "\u0eaa\u0eb0\u0e9a\u0eb2\u0e8d\u0e94\u0eb5", "\u1019\u1004\u103a\u1039\u1002\u101c\u102c\u1015\u102b", "\u1787\u17c6\u179a\u17b6\u1794\u179f\u17bd\u179a", "\u4f60\u597d\uff0c\u4e16\u754c\uff01\u4eca\u5929\u662f2026\u5e7411\u670829\u65e5\u3002", "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c\u3001\u30ab\u30bf\u30ab\u30ca\u3067\u3059\u30fc\u3002",
        "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4 \u1112\u1161\u11ab\u1100\u1173\u11af", "\u10d2\u10d0\u10db\u10d0\u10e0\u10ef\u10dd\u10d1\u10d0 \u1c90\u1c91", "\u0532\u0561\u0580\u0565\u0582 \u0561\u0577\u056d\u0561\u0580\u0570", "\u1230\u120b\u121d \u12d3\u1208\u121d",
        "\u13a3\u13b3\u13a9\u13f2 \uab70", "\u1820\u182f\u180e\u1820 \u182e\u1823\u1829\u182d\u1823\u182f", "\u0f56\u0f7c\u0f51\u0f0b\u0f66\u0f90\u0f51\u0f0b", "Ti\u1ebfng Vi\u1ec7t \u0111\u1eb7c bi\u1ec7t Stra\u00dfe \u0130stanbul \u01c5 \u02b0",
    ]
    prose = ("In the beginning the engineers wrote kernels by hand, and every row of a batch had the same bits as if it stood alone. "
             "\u201cQuotes\u201d \u2014 dashes \u2013 and ellipses\u2026 don\u2019t break it; nor do 3,141.59 dollars (\u20ac2.50), 50\u202f%, or \u00a75.\n\n")
    return texts + scripts + [prose * 6, " ".join(scripts), "\n".join(texts[:24])]


def write(path, value):
    path.write_text(json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n")


def main():
    source = pathlib.Path(sys.argv[1])
    target = pathlib.Path(__file__).parent / "tokenizers"
    ranges = assigned_ranges()
    texts = corpus()
    write(target / "corpus.json", {
        "unicode_version": unicodedata.unidata_version, "tokenizers_version": tokenizers.__version__, "seed": SEED,
        "string_count": STRING_COUNT, "batch": BATCH, "sequence_count": SEQUENCE_COUNT, "spaces": SPACES,
        "snippets": SNIPPETS, "ranges": ranges, "texts": texts})
    for model in MODELS:
        tokenizer = tokenizers.Tokenizer.from_file(str(source / model / "tokenizer.json"))
        size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        random = Random(SEED)
        string_hashes, sequence_hashes = [], []
        for first in range(0, STRING_COUNT, BATCH):
            value = 0xCBF29CE484222325
            for _ in range(first, first + BATCH):
                encoded = tokenizer.encode(random_string(random, ranges), add_special_tokens=False).ids
                value = hash_ids(encoded, value)
                value = fnv(tokenizer.decode(encoded, skip_special_tokens=False).encode(), value)
            string_hashes.append(f"{value:016x}")
        random = Random(SEED + 1)
        for first in range(0, SEQUENCE_COUNT, BATCH):
            value = 0xCBF29CE484222325
            for _ in range(first, first + BATCH):
                # Small ids are mostly single bytes: broken UTF-8 is what this is after.
                sequence = [random.below(size if random.below(2) else 600) for _ in range(1 + random.below(20))]
                value = fnv(tokenizer.decode(sequence, skip_special_tokens=False).encode(), value)
                value = fnv(tokenizer.decode(sequence, skip_special_tokens=True).encode(), value)
            sequence_hashes.append(f"{value:016x}")
        write(target / f"{model}.json", {
            "size": size, "ids": ids, "with_special": tokenizer.encode("Hello").ids,
            "decoded": [None if tokenizer.decode(i, skip_special_tokens=False) == t
                        else tokenizer.decode(i, skip_special_tokens=False) for i, t in zip(ids, texts)],
            "string_hashes": string_hashes, "sequence_hashes": sequence_hashes})
        print(model, size, sum(len(i) for i in ids))


if __name__ == "__main__":
    main()
