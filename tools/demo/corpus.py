"""The corpus: conversations by program and by the teacher, the byte-level BPE trained on them, token arrays with a weight a
token, and rows of 1024 packed without cutting a document. A step of its own, so that it runs on the CPU while the GPU
writes the teacher's answers.

corpus.py build --teacher DIR --prompts F --out DIR     tokenizer.json, train.npz, held.npz, held.jsonl
corpus.py pack --corpus F --seed N --out F.npz          one epoch of rows
"""

import argparse
import json
import random
import re
import time
import zlib
from multiprocessing import Pool
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import chat_format
from program_text import KINDS, edits

VOCABULARY = 8192
LENGTH = 1024
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
           r"|\s+(?!\S)|\s+")
SYSTEMS = ["You are a helpful assistant.", "You are a friendly assistant.", "Answer briefly.", "You are TensorFold Demo, a small assistant.",
           "You are a helpful and polite assistant. Keep your answers short."]
ASSISTANT, OTHER = 10, 1  # weights in tenths: what the model will write itself, and what it reads
WHOLE_EPOCHS, LATER_PROGRAM_SHARE = 3, 0.25


def train_tokenizer(texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY - len(chat_format.SPECIAL), show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(texts, trainer)
    visible = {"<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"}
    for token in chat_format.SPECIAL:  # ids after the merges, whatever their number
        added = AddedToken(token, special=token not in visible, normalized=False)
        (tokenizer.add_tokens if token in visible else tokenizer.add_special_tokens)([added])
    return tokenizer


def is_held(question):
    return zlib.crc32(question.encode()) % 100 == 0


def question_of(conversation):
    return next(m["content"] for m in conversation["messages"] if m["role"] == "user")


def finished(conversation):
    """-> (kind, held-out?, text, conversation where it is held out)."""
    text = chat_format.render(conversation["messages"], conversation.get("tools"))
    held = is_held(question_of(conversation))
    return conversation["kind"], held, text, conversation if held else None


def program_documents(job):
    seed, count, kinds, texts = job
    rng = random.Random(seed)
    edits.texts[:] = texts
    names = kinds or list(KINDS)
    weights = [KINDS[name][1] for name in names]
    return [finished(KINDS[rng.choices(names, weights)[0]][0](rng)) for _ in range(count)]


QUOTES = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "—": "-", "–": "-", "…": "...", "\u00a0": " "})


def usable(prompt, text):
    """The teacher's answer, cleaned, or None."""
    text = text.translate(QUOTES).strip()
    if not text or not text.isascii() or len(text) > 1400:
        return None
    if re.search(r"smollm|hugging ?face|as an ai|language model|i'm sorry|i cannot", text, re.I):
        return None
    words = text.lower().split()
    seen = {}
    for at in range(len(words) - 4):
        part = tuple(words[at:at + 5])
        seen[part] = seen.get(part, 0) + 1
        if seen[part] > 2:
            return None
    if len(words) < 12 and text.rstrip(".!?") in prompt:
        return None
    return text


def teacher_documents(job):
    """Conversations of one to three exchanges from the teacher's answers, a part with thoughts and system prompts."""
    seed, pairs = job
    rng = random.Random(seed)
    kept = []
    for entry, text in pairs:
        text = usable(entry["prompt"], text)
        if text:
            kept.append((entry, text))
    found, at = [], 0
    while at < len(kept):
        turns = rng.choices([1, 2, 3], [84, 11, 5])[0]
        part, at = kept[at:at + turns], at + turns
        if len({is_held(entry["prompt"]) for entry, _ in part}) > 1:
            part = part[:1]
        thinks = rng.random() < 0.3
        messages = [{"role": "system", "content": rng.choice(SYSTEMS)}] if rng.random() < 0.15 else []
        for entry, text in part:
            messages += [chat_format.user(entry["prompt"]), chat_format.assistant(text, entry["thought"] if thinks else None)]
        found.append(finished({"kind": "chat", "messages": messages}))
    return found, [text for _, text in kept[::8] if 60 < len(text) < 500 and "\n" not in text][:400]


def token_arrays(tokenizer, texts):
    """-> ids uint16 [N], weights uint8 [N], bounds int64 [documents + 1]."""
    flat, lengths = [], []
    for at in range(0, len(texts), 20000):
        for encoding in tokenizer.encode_batch_fast(texts[at:at + 20000], add_special_tokens=False):
            flat.append(np.array(encoding.ids, dtype=np.uint16))
            lengths.append(len(encoding.ids))
    ids = np.concatenate(flat)
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return ids, token_weights(tokenizer, ids), bounds


def generation_starts(tokenizer, ids):
    """Indices of the assistant turns' headers and of the first token that the model writes in each."""
    header = tokenizer.encode("assistant\n", add_special_tokens=False).ids
    think, empty = tokenizer.token_to_id("<think>"), tokenizer.encode("\n\n", add_special_tokens=False).ids[0]
    at = np.nonzero(ids == tokenizer.token_to_id("<|im_start|>"))[0]
    at = at[at + len(header) + 5 < len(ids)]
    for offset, token in enumerate(header + [think]):
        at = at[ids[at + 1 + offset] == token]
    opened = at + 1 + len(header)
    return at, np.where(ids[opened + 1] == empty, opened + 4, opened + 2)


def token_weights(tokenizer, ids):
    starts, first = generation_starts(tokenizer, ids)
    ends = np.nonzero(ids == tokenizer.token_to_id("<|im_end|>"))[0]
    last = ends[np.minimum(np.searchsorted(ends, first), len(ends) - 1)]
    edge = np.zeros(len(ids) + 1, dtype=np.int32)
    np.add.at(edge, first, 1)
    np.add.at(edge, last + 1, -1)
    written = np.cumsum(edge[:-1]) > 0
    edge[:] = 0
    np.add.at(edge, starts, 1)
    np.add.at(edge, first, -1)
    given = np.cumsum(edge[:-1]) > 0
    return np.where(written, ASSISTANT, np.where(given, 0, OTHER)).astype(np.uint8)


def pack_rows(ids, weights, bounds, seed, most=None, chosen=None):
    """Whole documents (the first `most` of a random order) in rows of LENGTH: -> tokens uint16, starts bool, weights uint8, each [rows, LENGTH]."""
    rng = np.random.default_rng(seed)
    lengths = np.diff(bounds)
    order = [int(i) for i in rng.permutation(len(lengths) if chosen is None else chosen)[:most] if 1 < lengths[i] <= LENGTH]
    rows, waiting = [], []
    place, row, used = 0, [], 0
    while place < len(order) or waiting:
        while place < len(order) and len(waiting) < 64:
            waiting.append(order[place])
            place += 1
        fit = next((n for n, i in enumerate(waiting) if lengths[i] <= LENGTH - used), None)
        if fit is None or (used > LENGTH - 40):
            rows.append(row)
            row, used = [], 0
            continue
        document = waiting.pop(fit)
        row.append(document)
        used += int(lengths[document])
    rows.append(row)
    tokens = np.zeros((len(rows), LENGTH), dtype=np.uint16)
    marks = np.zeros((len(rows), LENGTH), dtype=bool)
    heavy = np.zeros((len(rows), LENGTH), dtype=np.uint8)
    for n, row in enumerate(rows):
        at = 0
        for i in row:
            size = int(lengths[i])
            tokens[n, at:at + size] = ids[bounds[i]:bounds[i + 1]]
            heavy[n, at:at + size] = weights[bounds[i]:bounds[i + 1]]
            marks[n, at] = True
            at += size
        if at < LENGTH:
            marks[n, at] = True
        marks[n, 0] = True
    order = rng.permutation(len(rows))
    return tokens[order], marks[order], heavy[order]


def read_shards(folder, seen, prompts):
    """New answers of the teacher as (prompt entry, text)."""
    pairs = []
    for path in sorted(folder.glob("shard*.jsonl")):
        if path not in seen:
            seen.add(path)
            pairs += [(prompts[i], text) for i, text in map(json.loads, open(path))]
    return pairs


def build(options):
    began = time.time()
    say = lambda text: print(f"corpus {time.time() - began:6.1f} s {text}", flush=True)
    prompts = [json.loads(line) for line in open(options.prompts)]
    options.out.mkdir(parents=True, exist_ok=True)
    with Pool(options.workers) as pool:
        jobs = [(1000 + n, 2000, [kind for kind in KINDS if kind != "edits"], []) for n in range(options.program // 2000)]
        documents = [d for part in pool.imap_unordered(program_documents, jobs) for d in part]
        say(f"{len(documents)} conversations by program")
        seen, answers, prose, batch = set(), [], [], 0

        def take():
            nonlocal batch
            pairs = read_shards(options.teacher, seen, prompts)
            random.Random(7).shuffle(pairs)
            jobs = []
            for at in range(0, len(pairs), 4000):
                batch += 1
                jobs.append((5000 + batch, pairs[at:at + 4000]))
            for found, texts in pool.imap_unordered(teacher_documents, jobs):
                answers.extend(found)
                prose.extend(texts)

        while not (options.teacher / "done").exists() and len(list(options.teacher.glob("shard*.jsonl"))) < options.shards_first:
            time.sleep(0.5)
        take()
        say(f"{len(answers)} conversations of the teacher so far")
        jobs = [(9000 + n, 2000, ["edits"], prose[n * 37 % max(1, len(prose)):][:3000]) for n in range(options.program // 8000)]
        documents += [d for part in pool.imap_unordered(program_documents, jobs) for d in part]
        rng = random.Random(3)
        sample = [text for _, _, text, _ in rng.sample(documents, min(len(documents), 60000))]
        sample += [text for _, _, text, _ in rng.sample(answers, min(len(answers), 120000))]
        tokenizer = train_tokenizer(sample)
        tokenizer.save(str(options.out / "tokenizer.json"))
        say(f"tokenizer of {tokenizer.get_vocab_size()} entries from {sum(map(len, sample)) / 1e6:.0f} MB")
        parts = [token_arrays(tokenizer, [text for _, held, text, _ in documents if not held])]
        say(f"{len(parts[0][0])} tokens by program")
        used = 0

        def tokenise():
            nonlocal used
            fresh = [text for _, held, text, _ in answers[used:] if not held]
            used = len(answers)
            if fresh:
                parts.append(token_arrays(tokenizer, fresh))

        tokenise()
        while not (options.teacher / "done").exists():
            time.sleep(0.2)
            take()
            tokenise()
        take()
        tokenise()
    offsets = np.cumsum([0] + [int(part[2][-1]) for part in parts])
    everything = [np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts]),
                  np.concatenate([[0]] + [part[2][1:] + offset for part, offset in zip(parts, offsets)])]
    say(f"{len(everything[0])} tokens in {len(everything[2]) - 1} conversations, {len(parts[0][0])} of them by program")
    np.savez(options.out / "train.npz", ids=everything[0], weights=everything[1], bounds=everything[2],
             program_tokens=len(parts[0][0]))
    tokens, starts, weights = pack_rows(*everything, 0, most=150000)  # a start; whole epochs follow, packed beside the training
    np.savez(options.out / "epoch0.npz", tokens=tokens, starts=starts, weights=weights)
    say(f"epoch 0: {len(tokens)} rows, {(tokens != 0).mean():.3f} full")
    held = [d for d in documents + answers if d[1]]
    random.Random(4).shuffle(held)
    held = held[:6000]
    ids, weights, bounds = token_arrays(tokenizer, [d[2] for d in held])
    np.savez(options.out / "held.npz", ids=ids, weights=weights, bounds=bounds, kinds=np.array([d[0] for d in held]))
    (options.out / "held.jsonl").write_text("".join(json.dumps(d[3]) + "\n" for d in held))
    say(f"{len(held)} held-out conversations; done")
    (options.out / "done").write_text("")


def pack(options):
    corpus = np.load(options.corpus)
    bounds = corpus["bounds"]
    # What programs write is learnt in a few passes, the teacher's text isn't: later epochs keep a quarter of the former.
    share = 1.0 if options.seed < WHOLE_EPOCHS else LATER_PROGRAM_SHARE
    by_program = int(np.searchsorted(bounds, int(corpus["program_tokens"])))  # they come first
    kept = np.random.default_rng(options.seed).random(len(bounds) - 1) < share
    kept[by_program:] = True
    chosen = np.nonzero(kept)[0]
    tokens, starts, weights = pack_rows(corpus["ids"], corpus["weights"], bounds, options.seed, chosen=chosen)
    scratch = options.out.with_name("part_" + options.out.name)
    np.savez(scratch, tokens=tokens, starts=starts, weights=weights)
    scratch.rename(options.out)


def main():
    flags = argparse.ArgumentParser()
    commands = flags.add_subparsers(dest="command", required=True)
    one = commands.add_parser("build")
    one.add_argument("--teacher", type=Path, required=True)
    one.add_argument("--prompts", required=True)
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--workers", type=int, default=7)
    one.add_argument("--program", type=int, default=360000)
    one.add_argument("--shards-first", type=int, default=3)
    two = commands.add_parser("pack")
    two.add_argument("--corpus", required=True)
    two.add_argument("--seed", type=int, required=True)
    two.add_argument("--out", type=Path, required=True)
    options = flags.parse_args()
    (build if options.command == "build" else pack)(options)


if __name__ == "__main__":
    main()
