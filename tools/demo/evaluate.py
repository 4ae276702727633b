"""What the lease must know before it ends: replies to held-out prompts, whether JSON parses and think blocks close, and how
many tokens a round brings with MTP chains and with DFlash2 blocks at temperature 0, simulated on the greedy replies.

A chain's depth n counts only when the depths before it were right, so feeding the true tokens gives the same counts as
feeding the drafts: every place of a reply is evaluated at once, then the rounds are walked."""

import json

import numpy as np
import torch
import torch.nn.functional as F

import chat_format
import corpus as corpus_room
import model as demo
import student


def prompts_of(held, tokenizer, kinds, count, thinking):
    """Up to `count` prompts of each kind, up to the first assistant turn."""
    found = []
    for kind in kinds:
        chosen = [c for c in held if c["kind"] == kind]
        seen = set()
        for conversation in chosen:
            messages = []
            for message in conversation["messages"]:
                if message["role"] == "assistant":
                    break
                messages.append(message)
            text = chat_format.render(messages, conversation.get("tools"), True, thinking)
            if text not in seen and len(seen) < count:
                seen.add(text)
                found.append((kind, conversation, tokenizer.encode(text, add_special_tokens=False).ids))
    return found


@torch.no_grad()
def accepted(model, drafter, documents, sizes, rows=16, depth=3):
    """Per document the accepted drafts after each place of the reply, by MTP and by blocks: two lists of arrays indexed by the
    pending token's place."""
    lengths = [len(d) for d in documents]
    device = model.table.device
    longest = 1024
    mtp, block = [], []
    for at in range(0, len(documents), rows):
        part = documents[at:at + rows]
        tokens = np.zeros((rows, longest), dtype=np.int32)
        starts = np.zeros((rows, longest), dtype=bool)
        starts[:, 0] = True
        for n, d in enumerate(part):
            tokens[n, :min(len(d), longest)] = d[:longest]
            if len(d) < longest:
                starts[n, len(d)] = True
        batch = demo.Batch(torch.from_numpy(tokens).to(device), starts)
        hidden, tapped = model.trunk(batch, model.config.taps)
        right = []
        for n, y in enumerate(model.mtp_levels(batch, hidden, depth, rows)):
            guess = torch.cat([F.linear(y[i:i + 4], model.table).argmax(-1) for i in range(0, rows, 4)])
            true = F.pad(batch.tokens, (0, n + 2))[:, n + 2:]
            right.append(guess == true)
        run = torch.stack(right, -1).int().cumprod(-1).sum(-1).cpu().numpy()  # at i: pending token i + 1
        for n, d in enumerate(part):
            mtp.append(np.concatenate([[0], run[n, :len(d) - 1]]))
        counts = block_counts(model, drafter, batch, tapped) if drafter else None
        for n, d in enumerate(part):
            block.append(counts[n, :len(d)] if counts is not None else None)
    return mtp, block


def block_counts(model, drafter, batch, tapped):
    """[B, T] accepted drafts of the block whose pending token is at that place."""
    size, out = drafter.config.block, []
    length = batch.length
    for start in range(0, length, 128):
        anchors = torch.arange(start, start + 128, device=batch.tokens.device).expand(batch.tokens.shape[0], -1)
        hh = drafter.blocks(batch, tapped, anchors)
        ahead = anchors[:, :, None] + torch.arange(size, device=anchors.device)
        tokens = F.pad(batch.tokens, (0, size)).gather(1, ahead.flatten(1)).view(ahead.shape).long()
        guesses = []
        p = drafter.p
        for n in range(hh.shape[0]):
            unary = F.linear(hh[n], model.table).float()
            best = unary.topk(drafter.config.candidates, -1)
            pred = F.embedding(tokens[n, :, :-1], p["candidate_selector.predecessor_codebook"]) * F.linear(hh[n], p["candidate_selector.hidden_projection.weight"])
            pair = (F.embedding(best.indices, p["candidate_selector.successor_codebook"]).float() * pred.float()[..., None, :]).sum(-1)
            choice = best.indices.gather(-1, (best.values + pair).argmax(-1, keepdim=True))[..., 0]
            guesses.append(choice == tokens[n, :, 1:])
        out.append(torch.stack(guesses).int().cumprod(-1).sum(-1))
    return torch.cat(out, 1).cpu().numpy()


def tokens_per_round(counts, size, length):
    """Walks a reply: the first token comes from the prompt's pass; then each round brings 1 + accepted."""
    at, rounds, end = size, 0, length - 1  # pending token's place; the last token ends the reply
    while at < end:
        at += 1 + int(counts[at])
        rounds += 1
    return (min(at, end) - size) / rounds if rounds else None


def report(model, drafter, tokenizer, corpus, longest, say):
    held = [json.loads(line) for line in open(corpus / "held.jsonl")]
    ends = [tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")]
    result = {"samples": []}
    kinds = ("chat", "edits", "json", "code", "tools", "arithmetic", "lookup")
    asked = prompts_of(held, tokenizer, kinds, 200, False)
    asked = [a for a in asked if len(a[2]) < longest - 140]
    texts = student.generate(model, [a[2] for a in asked], [0.0] * len(asked), ends, longest, 60)
    texts = [(text or a[2])[:len(a[2]) + 128] for text, a in zip(texts, asked)]
    mtp, block = accepted(model, drafter, texts, [len(a[2]) for a in asked])
    for kind in kinds:
        rows = [n for n, a in enumerate(asked) if a[0] == kind and len(texts[n]) > len(a[2]) + 1]
        mean = lambda counts: float(np.mean([x for x in (tokens_per_round(counts[n], len(asked[n][2]), len(texts[n])) for n in rows) if x])) if rows else 0.0
        total = lambda counts: rounds_total(counts, rows, asked, texts)
        right = sum(answer_of(tokenizer, texts[n], asked[n][2]) == asked[n][1]["messages"][first_reply(asked[n][1])]["content"] for n in rows)
        entry = {"prompts": len(rows), "mtp": total(mtp), "dflash2": total(block) if drafter else None, "mtp_mean": mean(mtp),
                 "dflash2_mean": mean(block) if drafter else None, "same_as_reference": right}
        if kind == "json":
            entry["valid"] = sum(parses(answer_of(tokenizer, texts[n], asked[n][2])) for n in rows)
        result[kind] = entry
        say(f"{kind}: {entry}")
        for n in rows[:6]:
            result["samples"].append([kind, tokenizer.decode(asked[n][2], skip_special_tokens=False)[-400:], answer_of(tokenizer, texts[n], asked[n][2])])
    thoughts = prompts_of(held, tokenizer, ("chat", "arithmetic", "json", "tools"), 60, True)
    replies = student.generate(model, [t[2] for t in thoughts], [0.0] * len(thoughts), ends, longest + 200, 30)
    close = tokenizer.token_to_id("</think>")
    done = [text for text in zip(replies, thoughts) if text[0]]
    result["think_closed"] = [sum(close in text[len(t[2]):] for text, t in done), len(done)]
    say(f"think blocks closed: {result['think_closed']}")
    for text, t in done[::24]:
        result["samples"].append(["think " + t[0], tokenizer.decode(t[2], skip_special_tokens=False)[-300:], tokenizer.decode(text[len(t[2]):], skip_special_tokens=False)])
    return result


def rounds_total(counts, rows, asked, texts):
    """Tokens per round over all rounds of all replies."""
    tokens = rounds = 0
    for n in rows:
        size, length = len(asked[n][2]), len(texts[n])
        rate = tokens_per_round(counts[n], size, length)
        if rate:
            tokens += length - 1 - size
            rounds += (length - 1 - size) / rate
    return tokens / rounds if rounds else 0.0


def first_reply(conversation):
    return next(n for n, m in enumerate(conversation["messages"]) if m["role"] == "assistant")


def answer_of(tokenizer, text, prompt):
    return tokenizer.decode(text[len(prompt):], skip_special_tokens=True).strip()


def parses(text):
    try:
        json.loads(text)
        return True
    except ValueError:
        return False
