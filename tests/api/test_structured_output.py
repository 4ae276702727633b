"""Structured output through the OpenAI SDK: every field, streamed and whole, random schemas whose replies are validated with
the jsonschema package, drafted against serial replies, and hostile sources."""
import json
import re
import time

import jsonschema
import openai
import pytest

from random_schemas import random_schema

PERSON = {
    "title": "Person",
    "type": "object",
    "properties": {
        "name": {"title": "Name", "type": "string", "maxLength": 12},
        "age": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 150}, {"type": "null"}], "default": None},
        "mood": {"$ref": "#/$defs/Mood"},
    },
    "required": ["name", "mood"],
    "$defs": {"Mood": {"enum": ["glad", "sad"], "title": "Mood", "type": "string"}},
}


@pytest.fixture(scope="module")
def wide(request):
    """A server whose context holds the longest of these replies."""
    from conftest import RunningServer

    running = RunningServer("--context", "512", "--parallel", "4")
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def wide_client(wide):
    return wide.client()


def ask(client, seed=0, max_tokens=440, temperature=1.0, **more):
    return client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "data, please"}], seed=seed, temperature=temperature,
        max_tokens=max_tokens, **more)


def text_of(reply):
    return reply.choices[0].message.content


def schema_format(schema, **more):
    return {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema, **more}}


def refusal(client, **more):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, max_tokens=16, **more)
    return caught.value.body


def test_schema_whole_and_streamed(wide_client):
    for seed in range(5):
        whole = ask(wide_client, seed, response_format=schema_format(PERSON, strict=True))
        assert whole.choices[0].finish_reason == "stop"
        jsonschema.validate(json.loads(text_of(whole)), PERSON)
        chunks = list(ask(wide_client, seed, response_format=schema_format(PERSON), stream=True))
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text_of(whole)


def test_greedy_follows_the_schema_too(wide_client):
    reply = ask(wide_client, temperature=0.0, response_format=schema_format(PERSON))
    if reply.choices[0].finish_reason == "stop":
        jsonschema.validate(json.loads(text_of(reply)), PERSON)


def test_json_object(wide_client):
    finished = 0
    for seed in range(20):
        reply = ask(wide_client, seed, response_format={"type": "json_object"})
        assert text_of(reply).lstrip(" \t\n").startswith("{")
        if reply.choices[0].finish_reason == "stop":
            assert isinstance(json.loads(text_of(reply)), dict)
            finished += 1
    assert finished > 0


def test_a_reply_that_is_cut_says_length(wide_client):
    reply = ask(wide_client, max_tokens=3, response_format=schema_format(PERSON))
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.completion_tokens == 3


@pytest.mark.parametrize("fields, pattern", [
    ({"guided_regex": "[a-c]{2,4}-\\d{3}"}, "[a-c]{2,4}-\\d{3}"),
    ({"guided_choice": ["left", "right", "straight on"]}, "left|right|straight on"),
    ({"guided_grammar": 'root ::= "(" [0-9]{1,3} ")" | "x" "y"{2}'}, r"\(\d{1,3}\)|xyy"),
    ({"structured_outputs": {"regex": "ok|ko"}}, "ok|ko"),
    ({"structured_outputs": {"choice": ["u", "v"]}}, "u|v"),
    ({"structured_outputs": {"grammar": 'root ::= "a" | "b"'}}, "a|b"),
    ({"structured_outputs": {"json": {"const": 5}}}, r"[ \t\n]{0,32}5"),
    ({"guided_json": '{"const": "x"}'}, r'[ \t\n]{0,32}"x"'),
    ({"guided_json": {"const": "first"}, "guided_regex": "second"}, r'[ \t\n]{0,32}"first"'),
    ({"guided_json": False, "guided_regex": "second"}, "second"),
])
def test_guided_fields(wide_client, fields, pattern):
    for seed in range(4):
        reply = ask(wide_client, seed, extra_body=fields)
        assert reply.choices[0].finish_reason == "stop"
        assert re.fullmatch(pattern, text_of(reply)), text_of(reply)


def test_completions_route(wide_client):
    reply = wide_client.completions.create(model="tiny", prompt="colour:", seed=1, max_tokens=40, temperature=1.0,
                                           extra_body={"guided_choice": ["red", "green"]})
    assert reply.choices[0].text in ("red", "green")
    assert reply.choices[0].finish_reason == "stop"


def test_end_tokens_ignored(wide_client):
    reply = ask(wide_client, extra_body={"guided_choice": ["abc"], "ignore_eos": True})
    assert text_of(reply) == "abc"
    assert reply.choices[0].finish_reason == "stop"


def test_with_stop_strings(wide_client):
    reply = ask(wide_client, stop=["-"], extra_body={"guided_regex": "[ab]{3}-[cd]{3}"})
    assert re.fullmatch("[ab]{3}", text_of(reply))
    assert reply.choices[0].finish_reason == "stop"


def test_seeds_neighbours_and_drafts_change_nothing(wide_client):
    import concurrent.futures

    def run(seed, draft):
        body = {} if draft else {"draft": False}
        return ask(wide_client, seed, response_format=schema_format(PERSON), extra_body=body)

    alone = [run(seed, False).model_extra["tensorfold"]["token_sha"] for seed in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda seed: run(seed, True), range(8)))
    assert [reply.model_extra["tensorfold"]["token_sha"] for reply in together] == alone


def test_two_hundred_random_schemas(wide_client):
    finished = 0
    for seed in range(200):
        schema = random_schema(seed)
        reply = ask(wide_client, seed, response_format=schema_format(schema))
        if reply.choices[0].finish_reason != "stop":
            continue
        finished += 1
        try:
            jsonschema.validate(json.loads(text_of(reply)), schema)
        except (jsonschema.ValidationError, json.JSONDecodeError) as problem:
            pytest.fail(f"seed {seed}: {problem}\n{json.dumps(schema)}\n{text_of(reply)}")
    assert finished >= 180


@pytest.mark.parametrize("fields, param, part", [
    ({"response_format": schema_format({"type": "object", "properties": {"x": {"contains": {}}}})},
     "response_format.json_schema.schema", "'contains' at #/properties/x"),
    ({"response_format": schema_format({"type": "string", "pattern": "(?=a)"})},
     "response_format.json_schema.schema", "look-around"),
    ({"extra_body": {"guided_regex": "(a"}}, "guided_regex", "without ')'"),
    ({"extra_body": {"guided_grammar": "root ::= nothing"}}, "guided_grammar", "'nothing'"),
    ({"extra_body": {"guided_choice": []}}, "guided_choice", "nonempty"),
    ({"extra_body": {"structured_outputs": {"whitespace_pattern": " "}}}, "structured_outputs.whitespace_pattern", ""),
    ({"extra_body": {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}},
     "response_format.json_schema.schema", "required"),
])
def test_refused_by_name(wide_client, fields, param, part):
    error = refusal(wide_client, **fields)
    assert error["param"] == param
    assert part in error["message"]


def nested_items(levels):
    schema = {"type": "null"}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


HOSTILE = {
    "deep": lambda: '{"items":' * 10_000 + "{}" + "}" * 10_000,
    "many levels": lambda: json.dumps(nested_items(90)),
    "reference cycle": lambda: json.dumps({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
    "endless object": lambda: json.dumps({"properties": {"x": {"$ref": "#"}}, "required": ["x"], "type": "object"}),
    "megabyte enum": lambda: json.dumps({"enum": [f"value number {i}" for i in range(60_000)]}),
    "wide enum": lambda: json.dumps({"enum": [f"v{i * 7919 % 10007}" for i in range(5000)]}),
    "unrolled": lambda: json.dumps({"type": "array", "minItems": 4000, "items": {"type": "string", "minLength": 4000}}),
    "long strings": lambda: json.dumps({"type": "string", "minLength": 100, "maxLength": 4000}),
    "thousand properties": lambda: json.dumps({"properties": {f"p{i}": {"type": "integer"} for i in range(1000)}}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas(wide, wide_client, name):
    """Served or refused, in bounded time, and the server goes on."""
    started = time.monotonic()
    try:
        reply = ask(wide_client, max_tokens=8, extra_body={"guided_json": HOSTILE[name]()})
        assert reply.usage.completion_tokens <= 8
    except openai.BadRequestError as error:
        assert error.body["param"] == "guided_json"
    assert time.monotonic() - started < 30
    assert re.fullmatch("still|here", text_of(ask(wide_client, extra_body={"guided_choice": ["still", "here"]})))


@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|a)*b", "((a{60}){100}){100}", "(" * 5000, "[^a]" * 2000, "(x+x+)+y", ".{0,64}",
                                     "(.*)(.*)(.*)(.*)(.*)(.*)(.*)x", "((((((a?){9}){9}){9}){9}){9}){9}"])
def test_hostile_patterns(wide_client, pattern):
    started = time.monotonic()
    try:
        ask(wide_client, max_tokens=8, extra_body={"guided_regex": pattern})
    except openai.BadRequestError as error:
        assert error.body["param"] == "guided_regex"
    assert time.monotonic() - started < 30


def test_invalid_utf8_is_a_400(wide):
    import urllib.error
    import urllib.request

    body = b'{"messages":[{"role":"user","content":"x"}],"guided_regex":"\xff\xfe"}'
    request = urllib.request.Request(wide.url + "/chat/completions", body, {"Content-Type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=30)
    assert caught.value.code == 400
