"""Penalties, biases, choices, seeds and log-probabilities through the official SDK and the real binary (issue 3)."""
import collections
import hashlib
import json
import subprocess

import openai
import pytest
from conftest import BINARY, MODEL

WORDS = [{"role": "user", "content": "hello there"}]
MASK = 2**64 - 1


def chat(client, content="hello there", **more):
    body = {"ignore_eos": True, "return_token_ids": True, **more.pop("extra_body", {})}
    fields = {"max_tokens": 24, "temperature": 0.8, **more}
    return client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": content}], extra_body=body, **fields
    )


def ids(choice):
    return choice.model_extra["token_ids"]


def runtime(reply):
    return reply.model_extra["tensorfold"]


def choice_seed(seed, index):
    if index == 0:
        return seed
    x = (seed + index * 0x9E3779B97F4A7C15) & MASK
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & MASK
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & MASK
    return (x ^ x >> 31) >> 11


def entries_of(stream):
    """Content, entries and finish reason of a streamed chat, from its chunks."""
    text, entries, finish = "", [], None
    for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
            if choice.logprobs:
                entries += choice.logprobs.content
    return text, entries, finish


@pytest.mark.parametrize("more", [{"temperature": 0}, {"seed": 3}, {"seed": 4, "presence_penalty": 1.5}])
@pytest.mark.parametrize("stops", [False, True])
def test_streamed_logprobs_equal_the_whole_ones(client, more, stops):
    fields = {"logprobs": True, "top_logprobs": 5, **more}
    if stops:
        text = chat(client, **more).choices[0].message.content
        fields["stop"] = [text[len(text) // 2 :][:2], "never seen"]
    whole = chat(client, **fields).choices[0]
    text, entries, finish = entries_of(chat(client, stream=True, **fields))
    assert text == whole.message.content
    assert finish == whole.finish_reason == ("stop" if stops else "length")
    assert entries == whole.logprobs.content
    spelled = b"".join(bytes(entry.bytes) for entry in entries).decode(errors="replace")
    if stops:  # the token in which the stop string begins may hold text of both
        assert spelled.startswith(text) and len(entries) < 24
    else:
        assert len(entries) == 24


def test_logprobs_are_of_the_raw_distribution(client):
    """Whatever was done to the draw, a token scores as it does when the same path is read as a prompt."""
    prompt = client.post("/tokenize", cast_to=object, body={"prompt": "hello world"})["tokens"]
    rules = [{}, {"presence_penalty": 2, "frequency_penalty": 1}, {"logit_bias": {str(i): 20 for i in range(20)}}]
    for rule in rules:
        drawn = client.completions.create(
            model="tiny", prompt=prompt, max_tokens=12, temperature=1.3, seed=5, logprobs=0,
            extra_body={"return_token_ids": True, "ignore_eos": True, "top_k": 30, **rule},
        ).choices[0]
        scored = client.completions.create(model="tiny", prompt=prompt + ids(drawn), max_tokens=0, echo=True, logprobs=0)
        assert scored.choices[0].logprobs.token_logprobs[len(prompt) :] == drawn.logprobs.token_logprobs


def test_streamed_completion_logprobs(client):
    fields = {"model": "tiny", "prompt": "hello world", "max_tokens": 12, "seed": 8, "temperature": 1.0, "logprobs": 3}
    for echo in (False, True):
        whole = client.completions.create(echo=echo, **fields).choices[0]
        lists = collections.defaultdict(list)
        text = ""
        for chunk in client.completions.create(echo=echo, stream=True, **fields):
            for choice in chunk.choices:
                text += choice.text
                if choice.logprobs:
                    for name, values in choice.logprobs.model_dump().items():
                        lists[name] += values
        assert text == whole.text
        assert dict(lists) == whole.logprobs.model_dump()


def test_penalties_decide_the_greedy_token(client):
    """With frequency and presence alone an adjusted logit is the log-probability plus a constant: the choice can be checked."""
    frequency, presence = 0.7, 1.1
    fields = {"temperature": 0, "logprobs": True, "top_logprobs": 20, "max_tokens": 60}
    plain = chat(client, **fields)
    reply = chat(client, frequency_penalty=frequency, presence_penalty=presence, **fields)
    assert ids(reply.choices[0]) != ids(plain.choices[0])
    counts = collections.Counter()
    for token, entry in zip(ids(reply.choices[0]), reply.choices[0].logprobs.content):
        names = {tuple(other.bytes): other.logprob for other in entry.top_logprobs}
        best = max(
            value - frequency * counts[name] - (presence if counts[name] else 0) for name, value in names.items()
        )
        name = tuple(entry.bytes)
        mine = entry.logprob - frequency * counts[name] - (presence if counts[name] else 0)
        assert mine >= best - 1e-5, token
        counts[name] += 1


def test_a_repetition_penalty_counts_the_prompt(client):
    prompt = client.post("/tokenize", cast_to=object, body={"prompt": "hello world"})["tokens"]
    fields = {"model": "tiny", "max_tokens": 12, "temperature": 0}
    extra = {"return_token_ids": True, "ignore_eos": True}
    plain = client.completions.create(prompt=prompt, extra_body=extra, **fields).choices[0]
    # What the model would say stands in the prompt now: only a penalty that counts it can forbid it.
    known = sorted(set(ids(plain)))
    path = known + prompt
    extra["repetition_penalty"] = 1e6
    reply = client.completions.create(prompt=path, extra_body=extra, **fields).choices[0]
    assert len(set(ids(reply))) == len(ids(reply))
    assert not set(ids(reply)) & set(path)


def test_biases_force_and_forbid(client):
    plain = ids(chat(client, temperature=0).choices[0])
    forced = chat(client, temperature=0, logit_bias={"77": 100}).choices[0]
    assert set(ids(forced)) == {77}
    forced = chat(client, seed=1, logit_bias={"77": 100}, extra_body={"top_p": 0.9, "min_p": 0.1}).choices[0]
    assert set(ids(forced)) == {77}
    forbidden = chat(client, temperature=0, logit_bias={str(token): -100 for token in set(plain)}).choices[0]
    assert not set(ids(forbidden)) & set(plain)
    # The bias wins over a penalty that is smaller, as it is added last.
    both = chat(client, temperature=0, logit_bias={"77": 100}, frequency_penalty=2, presence_penalty=2).choices[0]
    assert set(ids(both)) == {77}


penalised_drafts = []


@pytest.mark.parametrize(
    "rule",
    [
        {"presence_penalty": 1.5},
        {"frequency_penalty": 2, "presence_penalty": -1},
        {"extra_body": {"repetition_penalty": 1.3, "top_k": 300, "top_p": 0.9}},
        {"logit_bias": {str(i): 3 for i in range(40)}, "extra_body": {"repetition_penalty": 0.7}},
    ],
)
@pytest.mark.parametrize("temperature", [0, 0.9])
def test_drafts_never_change_what_penalties_do(client, rule, temperature):
    text = "one two three one two three one two three one two three"
    # Few ids to draw from, so that the reply repeats itself and copies are drafted, penalised or not.
    few = {str(i): 30 for i in range(100, 103)}
    rule = {**rule, "logit_bias": {**few, **rule.get("logit_bias", {})}}
    extra = rule.get("extra_body", {})
    fields = {**{k: v for k, v in rule.items() if k != "extra_body"}, "temperature": temperature, "seed": 11, "max_tokens": 64}
    drafted = chat(client, text, extra_body=extra, **fields)
    serial = chat(client, text, extra_body={**extra, "draft": False}, **fields)
    assert runtime(drafted)["token_sha"] == runtime(serial)["token_sha"]
    assert ids(drafted.choices[0]) == ids(serial.choices[0])
    assert runtime(serial)["drafted"] == 0
    penalised_drafts.append(runtime(drafted)["drafted"])


def test_penalised_replies_were_drafted():
    """Whether one of them is, is the engine's choice: it leaves be what doesn't pay."""
    assert len(penalised_drafts) == 8
    assert sum(penalised_drafts) > 0


@pytest.mark.parametrize("temperature", [0, 0.9])
def test_choices_equal_single_requests(client, temperature):
    reply = chat(client, n=8, seed=21, temperature=temperature)
    assert [choice.index for choice in reply.choices] == list(range(8))
    assert reply.usage.completion_tokens == 8 * 24
    for index, choice in enumerate(reply.choices):
        assert choice.model_extra["seed"] == choice_seed(21, index)
        single = chat(client, seed=choice_seed(21, index), temperature=temperature)
        assert ids(single.choices[0]) == ids(choice)
        assert single.usage.prompt_tokens == reply.usage.prompt_tokens
        assert runtime(single)["token_sha"] == choice.model_extra["token_sha"]
    assert len({tuple(ids(choice)) for choice in reply.choices}) == (1 if temperature == 0 else 8)


def test_streamed_choices(client):
    whole = chat(client, n=4, seed=5, max_tokens=40)
    text = collections.defaultdict(str)
    finish, order, usage = {}, [], None
    for chunk in chat(client, n=4, seed=5, max_tokens=40, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text[choice.index] += choice.delta.content or ""
            order.append(choice.index)
            if choice.finish_reason:
                finish[choice.index] = chunk.model_extra["tensorfold"]["token_sha"]
    assert [text[choice.index] for choice in whole.choices] == [choice.message.content for choice in whole.choices]
    assert finish == {choice.index: choice.model_extra["token_sha"] for choice in whole.choices}
    assert usage.completion_tokens == whole.usage.completion_tokens == 160
    assert set(order) == {0, 1, 2, 3}


def test_completion_choices(client):
    fields = {"model": "tiny", "prompt": "hello", "max_tokens": 10, "temperature": 1.0, "extra_body": {"ignore_eos": True}}
    whole = client.completions.create(n=3, seed=2, **fields)
    for index, choice in enumerate(whole.choices):
        assert choice.text == client.completions.create(seed=choice_seed(2, index), **fields).choices[0].text
    text = collections.defaultdict(str)
    for chunk in client.completions.create(n=3, seed=2, stream=True, **fields):
        for choice in chunk.choices:
            text[choice.index] += choice.text
    assert [text[i] for i in range(3)] == [choice.text for choice in whole.choices]


def test_a_disconnect_cancels_every_choice(server, client):
    stream = chat(client, "leave soon", n=3, max_tokens=200, stream=True)
    identity = next(iter(stream)).id
    stream.close()
    for suffix in ("", "#1", "#2"):
        server.wait_for(rf"ended {identity}{suffix} the client left", seconds=20)
    assert chat(client, seed=1).usage.completion_tokens == 24


def test_fresh_seeds_differ_and_repeat_when_named(client):
    first, second = chat(client), chat(client)
    assert runtime(first)["seed"] != runtime(second)["seed"]
    assert runtime(first)["token_sha"] != runtime(second)["token_sha"]
    again = chat(client, seed=runtime(first)["seed"])
    assert runtime(again)["token_sha"] == runtime(first)["token_sha"]
    several = chat(client, n=2)
    assert ids(chat(client, seed=several.choices[1].model_extra["seed"]).choices[0]) == ids(several.choices[1])


def test_seeds_of_the_server(start_server):
    server = start_server("--seed", "12", "--prompt-seed")
    client = server.client()
    assert runtime(chat(client))["seed"] == 12  # --seed wins over the prompt's
    assert runtime(chat(client, seed=7))["seed"] == 7
    assert server.stop() == 0
    server = start_server("--prompt-seed", environment={"TENSORFOLD_SEED_SALT": "-5"})
    client = server.client()
    tokens = client.post("/tokenize", cast_to=object, body={"messages": WORDS})["tokens"]
    digest = hashlib.sha256((",".join(map(str, tokens)) + "|-5").encode()).digest()
    expected = int.from_bytes(digest[:8], "little") & (2**63 - 1)
    assert runtime(chat(client))["seed"] == runtime(chat(client))["seed"] == expected
    assert runtime(chat(client, "something else"))["seed"] != expected
    assert runtime(chat(client, seed=-1))["seed"] == MASK


@pytest.mark.parametrize(
    "flags, environment, status, wanted",
    [
        ([], {"TENSORFOLD_SEED_SALT": "pepper"}, 1, "TENSORFOLD_SEED_SALT"),
        (["--instruct-sampling", "temperature=hot"], {}, 2, "--instruct-sampling"),
        (["--prompt-seed=1"], {}, 2, "--prompt-seed"),
    ],
)
def test_wrong_settings_end_the_server(flags, environment, status, wanted):
    if not BINARY.exists() or not MODEL.exists():
        pytest.skip("needs the built binary and the golden checkpoint")
    command = [str(BINARY), "serve", str(MODEL), "--port", "0", *flags]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert result.returncode == status and wanted in result.stderr, result.stderr


def test_instruct_sampling_is_for_chats_that_do_not_think(start_server):
    server = start_server("--instruct-sampling", "card,temperature=0.9", "--temperature", "0.6")
    client = server.client()
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    fields = {"temperature": openai.NOT_GIVEN, "seed": 4}
    given = chat(client, extra_body=off, **fields)
    spelled = {"temperature": 0.6, "top_p": 0.8, "presence_penalty": 1.5, "seed": 4, "extra_body": {**off, "top_k": 20}}
    assert ids(given.choices[0]) == ids(chat(client, **spelled).choices[0])
    greedy = ids(chat(client, temperature=0, extra_body=off).choices[0])
    assert greedy == ids(chat(client, temperature=0, presence_penalty=0, extra_body=off).choices[0])
    raw = {"model": "tiny", "prompt": "hello", "max_tokens": 12, "seed": 4}
    plain = client.completions.create(temperature=0.6, top_p=0.95, presence_penalty=0, extra_body={"top_k": 20}, **raw)
    assert client.completions.create(**raw).choices[0].text == plain.choices[0].text


def test_usage_and_runtime_blocks(client):
    reply = chat(client, "hello there " * 9, seed=1)
    block = runtime(reply)
    assert reply.usage.prompt_tokens_details.cached_tokens >= 0
    assert reply.usage.completion_tokens_details.reasoning_tokens >= 0
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    speculative = reply.model_extra["speculative"]
    for name in ("rounds", "drafted", "accepted", "acceptance_rate", "tokens_per_round", "sources"):
        assert block[name] == speculative[name]
    assert block["tokens_per_round"] == pytest.approx(24 / block["rounds"])
    assert sum(source["drafted"] for source in block["sources"].values()) == block["drafted"]
    assert sum(source["accepted"] for source in block["sources"].values()) == block["accepted"]
    assert sum(block["prefill_widths"]) == reply.usage.prompt_tokens - reply.usage.prompt_tokens_details.cached_tokens
    assert block["prefill_seconds"] > 0 and block["time_to_first_token"] >= block["prefill_seconds"]
    assert block["token_sha"] == hashlib.sha256(",".join(map(str, ids(reply.choices[0]))).encode()).hexdigest()[:12]
    assert block["min_rows"] >= 1


HOSTILE = [
    ('"temperature": NaN', "temperature"),
    ('"presence_penalty": -Infinity', "presence_penalty"),
    ('"frequency_penalty": 1e999', "frequency_penalty"),
    ('"frequency_penalty": 3', "frequency_penalty"),
    ('"repetition_penalty": "nan"', "repetition_penalty"),
    ('"repetition_penalty": 0', "repetition_penalty"),
    ('"logit_bias": {"5": NaN}', "logit_bias"),
    ('"logit_bias": {"5.5": 1}', "logit_bias"),
    ('"logit_bias": {"1e3": 1}', "logit_bias"),
    ('"logit_bias": {" 5": 1}', "logit_bias"),
    ('"logit_bias": {"999999": 1}', "logit_bias"),
    ('"logit_bias": {"-1": 1}', "logit_bias"),
    ('"logit_bias": {"5": 101}', "logit_bias"),
    ('"logit_bias": [1, 2]', "logit_bias"),
    ('"logit_bias": {' + ", ".join(f'"{i}": 1' for i in range(5000)) + "}", "logit_bias"),
    ('"n": 9', "n"),
    ('"n": 0', "n"),
    ('"n": -1', "n"),
    ('"n": 1e30', "n"),
    ('"top_logprobs": 5', "top_logprobs"),
    ('"logprobs": true, "top_logprobs": -1', "top_logprobs"),
    ('"seed": "x"', "seed"),
    ('"seed": [1]', "seed"),
    ('"stop": [' + ", ".join(['"x"'] * 10000) + "]", "stop"),
]


@pytest.mark.parametrize("field, param", HOSTILE, ids=[text[:40] for text, _ in HOSTILE])
def test_hostile_values_are_refused_by_name(server, field, param):
    body = b'{"messages": ' + json.dumps(WORDS).encode() + b", " + field.encode() + b"}"
    status, reply = server.post("/v1/chat/completions", body)
    assert status == 400, reply
    assert reply["error"]["param"] == param
    assert reply["error"]["type"] == "invalid_request_error"
    assert len(json.dumps(reply)) < 500
