#!/usr/bin/env python3
"""How much faster a reply that copies text is with drafts: the same completions drafted and with "draft": false, in turns.

    copy_speed.py URL [--tokens 200] [--repetitions 3] [--file TEXT]

The prompt holds a passage of the file, then its beginning again, so that the model goes on copying it. Fails when a
drafted reply has other tokens than its serial one. Prints one JSON object.
"""
import argparse
import json
import os
import sys
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))


def complete(url, prompt, tokens, draft):
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "draft": draft}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as reply:
        return json.load(reply)["tensorfold"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--file", default=os.path.join(HERE, "..", "docs", "one-arithmetic.md"))
    arguments = parser.parse_args()
    with open(arguments.file, encoding="utf-8") as file:
        passage = file.read()[:2000]
    prompt = f"The text:\n\n{passage}\n\nThe same text once more:\n\n{passage[:160]}"
    best = {True: 0.0, False: 0.0}
    for _ in range(arguments.repetitions):
        runs = {draft: complete(arguments.url, prompt, arguments.tokens, draft) for draft in (False, True)}
        if runs[True]["token_sha"] != runs[False]["token_sha"]:
            sys.exit("drafted and serial tokens differ")
        for draft, run in runs.items():
            best[draft] = max(best[draft], run["tokens_per_second"])
    drafted = runs[True]
    print(json.dumps({"serial_tokens_per_second": best[False], "drafted_tokens_per_second": best[True],
                      "drafted_over_serial": best[True] / best[False], "rounds": drafted["rounds"],
                      "drafted": drafted["drafted"], "accepted": drafted["accepted"],
                      "token_sha": drafted["token_sha"]}))


if __name__ == "__main__":
    main()
