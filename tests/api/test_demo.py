"""The trained demo model end to end (issue 5): drafts of its MTP layer and of its DFlash2 drafter, thinking, structured output
and the caches. What is asserted of replies holds for this checkpoint at temperature 0; drafted bytes must be the serial ones."""
import json
import re
import time

import jsonschema
import pytest

from demo import DEMO, cached, chat, demo_server, runtime, sha, text_of

PROMPTS = [
    "Tell me a short story about a fox.",
    "What is 12 + 30?",
    "Write a Python function that adds two numbers.",
    "Name three colours.",
    'Replace "cat" with "dog" in this text: The cat sat on the mat, and the cat slept.',
]


@pytest.fixture(scope="module")
def server():
    running = demo_server()
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def client(server):
    return server.client()


# --- drafts ------------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def without_drafter(tmp_path_factory):
    """The demo model without the drafter beside it, so that its MTP layer is what drafts."""
    folder = tmp_path_factory.mktemp("demo")
    for file in DEMO.iterdir():
        if file.is_file():
            (folder / file.name).symlink_to(file)
    return folder


@pytest.mark.parametrize("kind", ["block", "mtp"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_drafted_replies_are_the_serial_ones(without_drafter, kind, temperature):
    running = demo_server("--mtp-drafts", "0") if kind == "block" else demo_server(model=without_drafter)
    client = running.client()
    drafted = accepted = 0
    for prompt in PROMPTS:
        fast = chat(client, prompt, temperature=temperature)
        serial = chat(client, prompt, temperature=temperature, draft=False)
        assert text_of(fast) == text_of(serial) and sha(fast) == sha(serial), prompt
        assert runtime(serial)["drafted"] == 0
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chat(client, prompt, temperature=temperature, stream=True)
                           if chunk.choices)
        assert streamed == text_of(serial)
        counts = runtime(fast)["sources"].get(kind, {"drafted": 0, "accepted": 0})
        drafted += counts["drafted"]
        accepted += counts["accepted"]
    assert drafted > 0 and accepted > 0, f"{kind}: {accepted} of {drafted}"
    running.stop()


def test_the_drafter_beside_the_model_is_found(server):
    kinds = json.loads(server.get("/health"))
    reply = chat(server.client(), PROMPTS[0])
    assert {"copy", "mtp", "block"} <= set(runtime(reply)["sources"]), kinds


def test_no_drafts_is_the_serial_reference(client):
    running = demo_server("--no-drafts")
    for prompt in PROMPTS:
        reply = chat(running.client(), prompt)
        assert runtime(reply)["drafted"] == 0
        assert sha(reply) == sha(chat(client, prompt))
    running.stop()


# --- thinking ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("prompt", ["What is 12 + 30?", "Name three colours.", "Hello!"])
def test_thinking_closes_its_block(client, prompt):
    reply = chat(client, prompt, thinking=True, tokens=300)
    message = reply.choices[0].message
    assert reply.choices[0].finish_reason == "stop"
    assert message.model_extra["reasoning_content"].strip()
    assert message.content.strip()
    for part in (message.content, message.model_extra["reasoning_content"]):
        assert "think>" not in part
    assert 0 < reply.usage.completion_tokens_details.reasoning_tokens < reply.usage.completion_tokens
    assert runtime(reply)["enable_thinking"] is True
    streamed = {"content": "", "reasoning_content": ""}
    for chunk in chat(client, prompt, thinking=True, tokens=300, stream=True):
        for name in streamed if chunk.choices else ():
            streamed[name] += chunk.choices[0].delta.model_dump().get(name) or ""
    assert streamed == {"content": message.content, "reasoning_content": message.model_extra["reasoning_content"]}


def test_thinking_off(client):
    for reply in (chat(client, "What is 12 + 30?"), chat(client, "What is 12 + 30?", thinking=True, extra_body={
            "chat_template_kwargs": {}, "reasoning_effort": "none"})):
        assert "reasoning_content" not in reply.choices[0].message.model_dump(exclude_none=True)
        assert reply.usage.completion_tokens_details.reasoning_tokens == 0
        assert runtime(reply)["enable_thinking"] is False
        assert "42" in text_of(reply)


def test_thinking_is_the_default_and_a_flag(client):
    plain = {"chat_template_kwargs": {}}
    assert chat(client, "Hello!", extra_body=plain).choices[0].message.model_extra["reasoning_content"]
    running = demo_server("--no-thinking")
    reply = chat(running.client(), "Hello!", extra_body=plain)
    assert "reasoning_content" not in reply.choices[0].message.model_dump(exclude_none=True)
    running.stop()


@pytest.mark.parametrize("budget", [1, 3, 5])
def test_thinking_budget(client, budget):
    prompt = "What is 12 + 30?"
    free = chat(client, prompt, thinking=True, tokens=300)
    assert free.usage.completion_tokens_details.reasoning_tokens > 6
    held = chat(client, prompt, thinking=True, tokens=300, extra_body={"thinking_budget": budget})
    serial = chat(client, prompt, thinking=True, tokens=300, draft=False, extra_body={"thinking_budget": budget})
    assert sha(held) == sha(serial)
    # The budget's last token is the first of those that close the block: a line end, the mark.
    assert budget <= held.usage.completion_tokens_details.reasoning_tokens <= budget + 2
    assert held.choices[0].message.content.strip()
    reasoning = held.choices[0].message.model_dump().get("reasoning_content") or ""
    assert free.choices[0].message.model_extra["reasoning_content"].startswith(reasoning)


# --- structured output ---------------------------------------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
                                           "city": {"type": "string", "maxLength": 20}}, "required": ["name", "age", "city"]}


@pytest.mark.parametrize("thinking", [False, True])
def test_json_schema(client, thinking):
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    for prompt in ("Make up a person as JSON with name, age and city.", "Tell me a story."):
        reply = chat(client, prompt, thinking=thinking, tokens=400, response_format=form)
        assert reply.choices[0].finish_reason == "stop"
        jsonschema.validate(json.loads(text_of(reply)), SCHEMA)
        assert sha(reply) == sha(chat(client, prompt, thinking=thinking, tokens=400, response_format=form, draft=False))


@pytest.mark.parametrize("thinking", [False, True])
def test_regex_and_choice(client, thinking):
    for field, pattern in (({"guided_regex": r"[A-Z]{3}-\d{2}"}, r"[A-Z]{3}-\d{2}"),
                           ({"guided_choice": ["red", "green", "blue"]}, "red|green|blue")):
        reply = chat(client, "Give me a code, or a colour.", thinking=thinking, tokens=300, extra_body=field)
        assert re.fullmatch(pattern, text_of(reply)), text_of(reply)
        assert sha(reply) == sha(chat(client, "Give me a code, or a colour.", thinking=thinking, tokens=300, extra_body=field, draft=False))


# --- caches --------------------------------------------------------------------------------------------------------------

SYSTEM = {"role": "system", "content": "You are a helpful assistant. " * 70}  # more than the 256 tokens that are worth a file


def conversation(client, turns):
    messages, replies = [SYSTEM], []
    for words in turns:
        messages.append({"role": "user", "content": words})
        replies.append(chat(client, messages, tokens=60))
        messages = messages + [{"role": "assistant", "content": text_of(replies[-1])}]
    return messages, replies


def test_the_second_turn_reads_the_first_from_the_cache(client):
    turns = ["Name three colours.", "And three animals."]
    _, (first, second) = conversation(client, turns)
    # All that the first turn's prompt rendered, up to its reply, is the second's beginning.
    assert cached(second) >= first.usage.prompt_tokens - 8
    assert cached(second) < second.usage.prompt_tokens
    cold = demo_server("--prompt-cache-gib", "0")
    _, (cold_first, cold_second) = conversation(cold.client(), turns)
    assert cached(cold_first) == cached(cold_second) == 0
    assert [sha(first), sha(second)] == [sha(cold_first), sha(cold_second)]
    cold.stop()


@pytest.mark.parametrize("flags", [["--learn"], ["--learn-conversations"]])
def test_what_was_learned_survives_a_restart(client, tmp_path, flags):
    flags = [*flags, "--learn-dir", str(tmp_path), "--learn-min-free-gib", "0"]
    words = ["What is 3 + 4?", "What is 5 + 6?", "Name a fruit."]
    first = demo_server(*flags)
    before = []
    for question in words:  # what several requests share is what --learn keeps
        before.append(chat(first.client(), [SYSTEM, {"role": "user", "content": question}]))
    deadline = time.monotonic() + 20
    while not any(path.stat().st_size > 100_000 for path in tmp_path.rglob("*") if path.is_file()):
        assert time.monotonic() < deadline, "nothing was written"
        time.sleep(0.05)
    assert first.stop() == 0
    second = demo_server(*flags)
    question = [SYSTEM, {"role": "user", "content": words[0]}]
    again = chat(second.client(), question)
    assert sha(again) == sha(before[0]) == sha(chat(client, question))
    assert 256 <= cached(again) < again.usage.prompt_tokens
    assert again.usage.prompt_tokens == before[0].usage.prompt_tokens
    # Truthful: what is told as cached was not computed.
    assert sum(runtime(again)["prefill_widths"]) == again.usage.prompt_tokens - cached(again)
    second.stop()
