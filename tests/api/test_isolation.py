"""What a sceptic would try: nothing that happens beside, before or after a request may change a byte of its reply, and
nothing of one request may reach another (issue 3, "How it is shown", 5). Every reply is compared with the serial one of a
server that keeps nothing. Runs on a golden checkpoint, and on SmolLM2 too where TENSORFOLD_SMOLLM2 names its file."""
import concurrent.futures
import itertools
import json
import os
import pathlib
import random
import signal
import threading

import pytest
from conftest import MODEL, RunningServer

SMOLLM2 = os.environ.get("TENSORFOLD_SMOLLM2")
MODELS = {"golden": MODEL, **({"smollm2": pathlib.Path(SMOLLM2)} if SMOLLM2 else {})}
CONTEXT = "512"
TEXT = '"quotes" \\ and \'more\', 漢字かな, \U0001f600\U0001f469\u200d\U0001f680 é\u0301\n\tend'


@pytest.fixture(scope="module", params=MODELS, ids=list(MODELS))
def model(request):
    return MODELS[request.param]


@pytest.fixture(scope="module")
def shared(model):
    running = RunningServer("--context", CONTEXT, "--parallel", "8", model=model)
    yield running.client()
    assert running.stop() == 0


@pytest.fixture(scope="module")
def reference(model):
    """A server that keeps no prefix and runs one request at a time; serial() asks it without drafts."""
    running = RunningServer("--context", CONTEXT, "--parallel", "1", "--prompt-cache-gib", "0", model=model)
    yield running.client()
    assert running.stop() == 0


def body(text, seed=1, tokens=24, **more):
    extra = {"ignore_eos": True, "return_token_ids": True, **more.pop("extra", {})}
    messages = text if isinstance(text, list) else [{"role": "user", "content": text}]
    fields = {"temperature": 0.8, **more}
    return {"model": "tiny", "messages": messages, "seed": seed, "max_tokens": tokens, "extra_body": extra, **fields}


def ask(client, request):
    return client.chat.completions.create(**request)


def undrafted(request):
    return {**request, "extra_body": {**request["extra_body"], "draft": False}}


def serial(client, request):
    return ask(client, undrafted(request))


def ids(reply):
    return reply.choices[0].model_extra["token_ids"]


def cached(reply):
    return reply.usage.prompt_tokens_details.cached_tokens


def text_of(reply):
    return reply.choices[0].message.content


def of_tokens(client, sentence, tokens):
    """The sentence as often as it takes to have so many tokens, whatever the tokenizer."""
    one = client.post("/tokenize", cast_to=object, body={"prompt": sentence})["count"]
    return sentence * -(-tokens // one)


def streamed(client, request):
    """Text and ids of a streamed reply."""
    text, tokens = "", None
    for chunk in client.chat.completions.create(stream=True, **request):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            tokens = (choice.model_extra or {}).get("token_ids", tokens)
    return text, tokens


def together(work, count=16):
    """Runs the calls at once, all of them released at the same moment."""
    barrier = threading.Barrier(min(count, len(work)))

    def run(call):
        barrier.wait(timeout=60)
        return call()

    with concurrent.futures.ThreadPoolExecutor(min(count, len(work))) as pool:
        return list(pool.map(run, work))


def test_sixteen_marked_prompts_at_once(shared, reference):
    marks = [f"ZEBRA{i * 7919 % 100003:05d}" for i in range(16)]
    requests = [
        body(f"My code word is {mark}. Repeat the code word: {mark} {mark}", seed=i, temperature=0.9 if i % 2 else 0)
        for i, mark in enumerate(marks)
    ]
    alone = [serial(reference, request) for request in requests]
    for _ in range(2):
        replies = together([lambda r=request: ask(shared, r) for request in requests])
        for i, reply in enumerate(replies):
            assert ids(reply) == ids(alone[i]), marks[i]
            assert not [mark for mark in marks if mark != marks[i] and mark in text_of(reply)]


def test_drafted_and_serial_streams_side_by_side(shared, reference):
    texts = [f"one two three {i} one two three {i} one two three {i} one two" for i in range(8)]
    requests = [body(text, seed=i, temperature=0 if i % 2 else 1.0, tokens=48) for i, text in enumerate(texts)]
    alone = [ids(serial(reference, request)) for request in requests]
    mixed = [call for request in requests for call in (request, undrafted(request))]
    drafts = 0
    for _ in range(20):  # on a busy machine drafts seldom pay, and then there are none
        replies = together([lambda r=request: ask(shared, r) for request in mixed])
        for i, (drafted, plain) in enumerate(zip(replies[::2], replies[1::2])):
            assert ids(drafted) == ids(plain) == alone[i]
            assert plain.model_extra["tensorfold"]["drafted"] == 0
        drafts += sum(reply.model_extra["tensorfold"]["drafted"] for reply in replies)
        if drafts > 0:
            break
    assert drafts > 0


def test_a_stream_has_the_bytes_of_the_whole_reply(shared, reference):
    tokens = shared.post("/tokenize", cast_to=object, body={"prompt": TEXT})["tokens"]
    bias = {str(token): 60 for token in set(tokens)}
    for seed in range(6):
        # Replies made of this text's tokens in a random order: quotes, escapes, and characters cut anywhere.
        request = body(f"Write: {TEXT} {TEXT}", seed=seed, tokens=60, temperature=1.5, logit_bias=bias)
        alone = serial(reference, request)
        assert set(ids(alone)) <= set(tokens)
        whole, (text, stream_ids) = together([lambda: ask(shared, request), lambda: streamed(shared, request)])
        assert ids(whole) == stream_ids == ids(alone)
        assert text.encode() == text_of(whole).encode() == text_of(alone).encode()
        request["stop"] = [text_of(alone)[20:22]]
        stopped, (text, _) = together([lambda: ask(shared, request), lambda: streamed(shared, request)])
        assert text.encode() == text_of(stopped).encode()
        assert text_of(alone).startswith(text) and len(text) <= 20


def test_cancelled_neighbours_leave_no_trace(shared, reference):
    requests = [body(f"A long story about number {i}.", seed=i, tokens=60) for i in range(4)]
    alone = [ids(serial(reference, request)) for request in requests]
    chance = random.Random(5)
    stopping = threading.Event()

    def leave(i):
        while not stopping.is_set():
            stream = shared.chat.completions.create(stream=True, **body(f"Story {i} about {chance.random()}", tokens=200))
            for _ in itertools.islice(stream, chance.randrange(1, 6)):
                pass
            stream.close()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        leaving = [pool.submit(leave, i) for i in range(4)]
        try:
            for _ in range(3):
                replies = together([lambda r=request: ask(shared, r) for request in requests])
                assert [ids(reply) for reply in replies] == alone
        finally:
            stopping.set()
        for neighbour in leaving:
            neighbour.result(timeout=60)


def common_prefix(one, other):
    return next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


def test_a_tiny_cache_tells_the_truth_and_no_secret(model, start_server, reference):
    client = start_server("--context", CONTEXT, "--prompt-cache-gib", "0.002", model=model).client()
    secrets = [f"The password of account {i} is K{i * 104729 % 999983:06d}X." for i in range(12)]
    passwords = [secret.split()[-1].rstrip(".") for secret in secrets]
    chance = random.Random(9)
    seen = []  # everything that was read or written before: what can be restored at most
    alone = {}
    for _ in range(40):
        i = chance.randrange(len(secrets))
        cut = chance.choice([None, None, 60])
        request = body(f"Remember this well, and tell nobody else. {secrets[i]} What is it?"[:cut], seed=i)
        prompt = client.post("/tokenize", cast_to=object, body={"messages": request["messages"]})["tokens"]
        reply = ask(client, request)
        key = json.dumps(request)
        if key not in alone:
            alone[key] = ids(serial(reference, request))
        assert ids(reply) == alone[key]
        longest = max((common_prefix(prompt, other) for other in seen), default=0)
        assert cached(reply) <= min(longest, len(prompt) - 1)
        others = [password for j, password in enumerate(passwords) if j != i or cut]
        assert not [password for password in others if password in text_of(reply)]
        seen.append(prompt + ids(reply))


def test_the_same_text_under_different_keys(model, start_server, reference):
    server = start_server("--context", CONTEXT, "--api-key", "first", "--api-key", "second", model=model)
    request = body("The same long text for both of them. " * 6, seed=3)
    alone = ids(serial(reference, request))
    first, second = server.client("first"), server.client("second")
    one = ask(first, request)
    other = ask(second, request)
    assert ids(one) == ids(other) == alone
    assert cached(one) == cached(other) == 0  # that another key sent it can't be told
    again = ask(first, request)
    assert ids(again) == alone
    assert cached(again) > 0
    replies = together([lambda c=client: ask(c, request) for client in (first, second) * 4])
    assert all(ids(reply) == alone for reply in replies)


def test_a_restart_in_the_middle(model, start_server, reference, tmp_path):
    flags = ["--context", CONTEXT, "--learn-conversations", "--learn-dir", str(tmp_path), "--learn-min-free-gib", "0"]
    text = of_tokens(reference, "Let us count, slowly and aloud, from one on. ", 280)
    messages = [{"role": "user", "content": text}]
    for turn in range(3):
        server = start_server(*flags, model=model)
        server.wait_for("learning: ")
        client = server.client()
        request = body(messages, seed=turn, tokens=12)
        reply = ask(client, request)
        assert ids(reply) == ids(serial(reference, request)), turn
        if turn:
            assert cached(reply) >= 128
        # In the middle of another reply the server dies, once politely and else by kill -9.
        stream = client.chat.completions.create(stream=True, **body(messages, seed=99, tokens=40))
        next(iter(stream))
        if turn == 0:
            stream.close()
            assert server.stop() == 0
        else:
            server.process.send_signal(signal.SIGKILL)
            server.process.wait(timeout=30)
        messages = messages + [
            {"role": "assistant", "content": text_of(reply)},
            {"role": "user", "content": f"Go on, please, from {turn}."},
        ]


def test_a_state_written_beside_others_serves_fifty_suffixes(shared, reference):
    base = of_tokens(shared, "These are the rules of the house, which everybody knows by heart. ", 160)
    stopping = threading.Event()

    def neighbour(i):
        while not stopping.is_set():
            ask(shared, body(f"Neighbour {i} talks and talks.", seed=i, tokens=60))

    suffixes = [f"Rule {i * 37 % 101}?" for i in range(50)]
    requests = [body(base + suffix, seed=i, tokens=8, temperature=0.9 if i % 2 else 0) for i, suffix in enumerate(suffixes)]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        neighbours = [pool.submit(neighbour, i) for i in range(3)]
        try:
            ask(shared, body(base, seed=0, tokens=4))  # its prefix is kept while the neighbours decode
            replies = together([lambda r=request: ask(shared, r) for request in requests[:8]])
            for request in requests[8:]:
                replies.append(ask(shared, request))
        finally:
            stopping.set()
        for running in neighbours:
            running.result(timeout=60)
    resumed = 0
    for request, reply in zip(requests, replies):
        assert ids(reply) == ids(serial(reference, request))
        resumed += cached(reply) >= 128
    assert resumed >= 45
