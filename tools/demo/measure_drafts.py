"""Tokens per round of a running server by kind of prompt, on held-out prompts: `tensorfold serve models/demo` first, once for
each drafting that is to be measured.

measure_drafts.py --held held.jsonl.gz [--url http://127.0.0.1:8080] [--count 200] [--temperature 0] [--compare FILE]

Writes one line a kind; --save keeps the replies' token hashes, --compare holds them against those of another run (drafted
tokens must equal serial ones). Standard library only.
"""

import argparse
import gzip
import json
import sys
import urllib.request

SEED = 20261129


def read_prompts(path, kinds, count):
    """Up to `count` distinct conversations a kind, cut before the first reply."""
    opener = gzip.open if path.endswith(".gz") else open
    found = {kind: [] for kind in kinds}
    seen = set()
    with opener(path, "rt") as file:
        for line in file:
            conversation = json.loads(line)
            kind = conversation["kind"]
            if kind not in found or len(found[kind]) >= count:
                continue
            messages = []
            for message in conversation["messages"]:
                if message["role"] == "assistant":
                    break
                messages.append(message)
            key = json.dumps([messages, conversation.get("tools")])
            if key not in seen:
                seen.add(key)
                found[kind].append((messages, conversation.get("tools")))
    return found


def ask(url, messages, tools, temperature, tokens):
    body = {"messages": messages, "max_tokens": tokens, "temperature": temperature, "seed": SEED,
            "chat_template_kwargs": {"enable_thinking": False}}
    if tools:
        body["tools"] = tools
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as reply:
        return json.load(reply)


def measure(url, prompts, temperature, tokens):
    totals = {"prompts": 0, "tokens": 0, "rounds": 0, "drafted": 0, "accepted": 0, "seconds": 0.0, "hashes": []}
    for messages, tools in prompts:
        reply = ask(url, messages, tools, temperature, tokens)
        runtime = reply["tensorfold"]
        totals["prompts"] += 1
        totals["tokens"] += reply["usage"]["completion_tokens"]
        for name in ("rounds", "drafted", "accepted"):
            totals[name] += runtime[name]
        totals["seconds"] += runtime["seconds"]  # of decoding alone: docs/api.md
        totals["hashes"].append(runtime["token_sha"])
    return totals


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--held", required=True)
    flags.add_argument("--url", default="http://127.0.0.1:8080")
    flags.add_argument("--count", type=int, default=200)
    flags.add_argument("--tokens", type=int, default=128)
    flags.add_argument("--temperature", type=float, default=0.0)
    flags.add_argument("--kinds", default="chat,edits,json,code,tools")
    flags.add_argument("--save")
    flags.add_argument("--compare")
    options = flags.parse_args()
    kinds = options.kinds.split(",")
    results = {}
    print(f"{'kind':10} {'prompts':>7} {'tokens':>7} {'rounds':>7} {'tokens/round':>12} {'accepted':>8} {'tokens/s':>9}")
    for kind, prompts in read_prompts(options.held, kinds, options.count).items():
        totals = results[kind] = measure(options.url, prompts, options.temperature, options.tokens)
        # the first token of a reply comes from the prompt's own pass, and the seconds begin with it
        decoded = totals["tokens"] - totals["prompts"]
        per_round = decoded / max(1, totals["rounds"])
        share = totals["accepted"] / max(1, totals["drafted"])
        print(f"{kind:10} {totals['prompts']:7} {totals['tokens']:7} {totals['rounds']:7} {per_round:12.2f} {share:8.1%} "
              f"{decoded / max(1e-9, totals['seconds']):9.1f}", flush=True)
    if options.save:
        with open(options.save, "w") as file:
            json.dump(results, file)
    if options.compare:
        with open(options.compare) as file:
            other = json.load(file)
        different = sum(a != b for kind in kinds for a, b in zip(results[kind]["hashes"], other[kind]["hashes"]))
        compared = sum(len(results[kind]["hashes"]) for kind in kinds)
        print(f"{compared - different} of {compared} replies equal those of {options.compare}")
        if different:
            sys.exit(1)


if __name__ == "__main__":
    main()
