#!/usr/bin/env python3
"""Tokens a second of one stream through transformers: bf16 weights, static cache, one CUDA graph a token.

    transformers_decode.py MODEL.gguf [--prompt-tokens 32] [--reply-tokens 128] [--repeats 5] [--seconds-max 150] [--serve]

The graph holds the whole step, argmax included, and feeds itself: nothing goes to the host between tokens, which is
more than `generate` can do. The step is captured as it is and compiled by Inductor (with and without its search for
the best kernels); the fastest counts. A way that fails, or isn't ready --seconds-max after the first began, is named and
left out.
--serve: prints READY and then one JSON line for every line it reads, so that other engines can be timed in between.
On a machine without a GPU the step runs uncaptured, to test this program.
"""
import argparse
import copy
import json
import signal
import statistics
import sys
import time

import torch
import transformers

import gguf_model

WAYS = {"eager": None, "compiled": {}, "compiled and tuned": {"coordinate_descent_tuning": True}}


class Decoder:
    """One stream at fixed addresses: `step` reads its token and position from the GPU and advances both."""

    def __init__(self, model, device, prompt_tokens, reply_tokens):
        self.model, self.device, self.prompt_tokens = model, device, prompt_tokens
        length = (prompt_tokens + reply_tokens + 15) // 16 * 16
        # Within one window, so that sliding layers see all keys: full ones are cheaper and need no host-side length.
        config = copy.deepcopy(model.config)
        assert length <= (getattr(config, "sliding_window", None) or length)
        config.layer_types = ["full_attention"] * config.num_hidden_layers
        config.sliding_window = None
        self.cache = transformers.StaticCache(config=config, max_cache_len=length)
        self.key_positions = torch.arange(length, device=device).view(1, 1, 1, -1)
        self.position = torch.zeros(1, 1, dtype=torch.int64, device=device)
        self.token = torch.zeros(1, 1, dtype=torch.int64, device=device)
        generator = torch.Generator().manual_seed(1)
        self.prompt = torch.randint(3, min(10000, config.vocab_size), (1, prompt_tokens), generator=generator).to(device)
        self.first = None

    def forward(self, tokens, positions):
        visible = self.key_positions <= positions.view(1, 1, -1, 1)
        mask = visible
        if getattr(self.model.config, "layer_types", None) and self.model.config.model_type.startswith("gemma3"):
            mask = {"full_attention": visible, "sliding_attention": visible}
        output = self.model(input_ids=tokens, attention_mask=mask, position_ids=positions, past_key_values=self.cache,
                            use_cache=True)
        return output.logits[:, -1].argmax(-1, keepdim=True)

    def step(self):
        return self.forward(self.token, self.position)

    def restart(self):
        """To where the prompt has been read and its successor chosen."""
        if self.first is None:
            self.first = self.forward(self.prompt, torch.arange(self.prompt_tokens, device=self.device).view(1, -1))
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(self.prompt_tokens)
        self.position.fill_(self.prompt_tokens)
        self.token.copy_(self.first)

    def advance(self, step):
        self.token.copy_(step())
        self.position.add_(1)

    def prepare(self, options):
        """A function that computes one token; `options` None: as it is, else Inductor's."""
        torch._dynamo.reset()
        step = self.step if options is None else torch.compile(self.step, dynamic=False, options=options)
        if self.device.type == "cpu":
            return lambda: self.advance(step)
        self.restart()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.advance(step)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.advance(step)
        return graph.replay

    def synchronize(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def rate(self, advance, tokens):
        self.restart()
        self.synchronize()
        begin = time.perf_counter()
        for _ in range(tokens):
            advance()
        self.synchronize()
        return tokens / (time.perf_counter() - begin)

    def reply(self, advance, tokens):
        self.restart()
        result = [int(self.token)]
        for _ in range(tokens):
            advance()
            result.append(int(self.token))
        return result

    def agreement(self, reply):
        """How many of a reply's tokens a plain pass over prompt and reply, without a cache, would choose too."""
        ids = torch.cat([self.prompt, torch.tensor([reply], device=self.device)], dim=1)
        chosen = self.model(input_ids=ids, use_cache=False).logits[0, self.prompt_tokens - 1:-1].argmax(-1).tolist()
        return sum(a == b for a, b in zip(chosen, reply))


def give_up(number, frame):
    raise TimeoutError("took too long")


def prepared(decoder, arguments):
    """The ways that work, by name."""
    signal.signal(signal.SIGALRM, give_up)
    ways, begin = {}, time.monotonic()
    for name, options in WAYS.items():
        started = time.monotonic()
        if started - begin > arguments.seconds_max:
            print(f"{name}: left out, {arguments.seconds_max} s are over", file=sys.stderr)
            continue
        try:
            if ways:  # one is needed, however long it takes
                signal.setitimer(signal.ITIMER_REAL, max(1.0, begin + arguments.seconds_max - started))
            advance = decoder.prepare(options)
            signal.setitimer(signal.ITIMER_REAL, 0)
            reply = decoder.reply(advance, 24)
            rate = decoder.rate(advance, arguments.reply_tokens)
        except Exception as error:  # whatever Inductor throws: the other ways still count
            signal.setitimer(signal.ITIMER_REAL, 0)
            print(f"{name}: failed: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
            continue
        ways[name] = advance
        print(f"{name}: {rate:.0f} tokens/s, {decoder.agreement(reply)} of {len(reply)} tokens as without a cache, "
              f"ready in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    if not ways:
        raise SystemExit("no way works")
    return ways


def measured(decoder, ways, arguments):
    rates = {name: [decoder.rate(advance, arguments.reply_tokens) for _ in range(arguments.repeats)]
             for name, advance in ways.items()}
    best = max(rates, key=lambda name: statistics.median(rates[name]))
    return {"tokens_per_second": statistics.median(rates[best]), "way": best, "samples": rates}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--reply-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds-max", type=float, default=150)
    parser.add_argument("--serve", action="store_true")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with torch.inference_mode(False), torch.no_grad():
        model = gguf_model.load(arguments.model, torch.bfloat16, device)
        decoder = Decoder(model, device, arguments.prompt_tokens, arguments.reply_tokens)
        ways = prepared(decoder, arguments)
        if not arguments.serve:
            print(json.dumps(measured(decoder, ways, arguments)))
            return
        print("READY", flush=True)
        for _ in sys.stdin:
            print(json.dumps(measured(decoder, ways, arguments)), flush=True)


if __name__ == "__main__":
    main()
