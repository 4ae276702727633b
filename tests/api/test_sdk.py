"""The official OpenAI SDK against the real binary: what a client sees (issue 2, "How it is shown", point 5)."""
import concurrent.futures
import json
import re

import openai
import pytest

MESSAGES = [{"role": "user", "content": "hello there"}]
SAMPLED = {"temperature": 0.8, "max_tokens": 24, "extra_body": {"ignore_eos": True}}


def chat(client, content, seed, **more):
    return client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": content}], seed=seed, **{**SAMPLED, **more}
    )


def sha(reply):
    return reply.model_extra["tensorfold"]["token_sha"]


def test_whole_chat(client):
    reply = chat(client, "hello there", 1)
    assert reply.object == "chat.completion"
    assert reply.model == "tiny"
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.completion_tokens == 24
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 24
    assert reply.model_extra["tensorfold"]["seed"] == 1
    assert sha(chat(client, "hello there", 1)) == sha(reply)
    assert sha(chat(client, "hello there", 2)) != sha(reply)


def test_streamed_chat_equals_whole(client):
    whole = chat(client, "hello there", 5)
    stream = chat(client, "hello there", 5, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 24
    assert chunks[-2].model_extra["tensorfold"]["token_sha"] == sha(whole)


def test_chat_logprobs(client):
    reply = chat(client, "hello there", 3, logprobs=True, top_logprobs=4)
    entries = reply.choices[0].logprobs.content
    assert len(entries) == 24
    for entry in entries:
        assert len(entry.top_logprobs) == 4
        values = [alternative.logprob for alternative in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert entry.logprob <= values[0] + 1e-6


def test_completions_echo_and_logprobs(client):
    scored = client.completions.create(model="tiny", prompt="hello world", max_tokens=0, echo=True, logprobs=2)
    choice = scored.choices[0]
    assert choice.text == "hello world"
    assert scored.usage.completion_tokens == 0
    assert len(choice.logprobs.tokens) == scored.usage.prompt_tokens
    assert choice.logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in choice.logprobs.token_logprobs[1:])
    drawn = client.completions.create(model="tiny", prompt="hello world", max_tokens=5, temperature=0, logprobs=1)
    assert len(drawn.choices[0].logprobs.token_logprobs) == drawn.usage.completion_tokens
    # What was drawn greedily scores the same when it is read back as a prompt.
    ids = client.post("/tokenize", cast_to=object, body={"prompt": "hello world"})["tokens"]
    tokens = client.completions.create(
        model="tiny", prompt=ids, max_tokens=5, temperature=0, logprobs=1, extra_body={"return_token_ids": True}
    )
    path = ids + tokens.choices[0].model_extra["token_ids"]
    again = client.completions.create(model="tiny", prompt=path, max_tokens=0, echo=True, logprobs=1)
    assert again.choices[0].logprobs.token_logprobs[len(ids):] == tokens.choices[0].logprobs.token_logprobs


def test_streamed_completion(client):
    whole = client.completions.create(model="tiny", prompt="hello", max_tokens=12, seed=4, temperature=1.0)
    stream = client.completions.create(model="tiny", prompt="hello", max_tokens=12, seed=4, temperature=1.0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text


def test_models(client):
    assert [model.id for model in client.models.list()] == ["tiny", "small"]


def test_unknown_model_is_served(client):
    reply = client.chat.completions.create(model="gpt-nothing", messages=MESSAGES, max_tokens=1)
    assert reply.model == "tiny"


@pytest.mark.parametrize(
    "field, value",
    [("temperature", True), ("max_tokens", "many"), ("n", 9), ("tools", [{"type": "web_search"}])],
)
def test_wrong_field_is_named(client, field, value):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="tiny", messages=MESSAGES, **{"extra_body": {field: value}})
    assert refused.value.param == field
    assert field in refused.value.message


def test_too_long(client):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=100000)
    assert refused.value.code == "context_length_exceeded"
    assert "This server's maximum context length is 256 tokens" in refused.value.message


def test_disconnect_in_mid_stream(server, client):
    for _ in range(20):  # a reply may be over before the server hears of the end
        stream = chat(client, "hello there", 6, stream=True, max_tokens=200)
        next(iter(stream))
        stream.close()
        if any(re.search(r"ended chatcmpl-\w+ the client left", line) for line in list(server.log)):
            break
    server.wait_for(r"ended chatcmpl-\w+ the client left", seconds=10)
    assert chat(client, "hello there", 1).usage.completion_tokens == 24


def test_sixteen_clients_equal_themselves_alone(client):
    prompts = [f"prompt number {i} " * (1 + i % 4) for i in range(16)]
    alone = [sha(chat(client, prompt, i)) for i, prompt in enumerate(prompts)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda i: sha(chat(client, prompts[i], i)), range(16)))
    assert together == alone


def test_stop_string(client):
    whole = chat(client, "hello there", 9).choices[0].message.content
    stop = whole[5:8]
    reply = chat(client, "hello there", 9, stop=[stop])
    assert reply.choices[0].finish_reason == "stop"
    assert reply.choices[0].message.content == whole[: whole.index(stop)]
    assert reply.model_extra["stop_sequence"] == stop


def test_health_and_token_round_trip(server, client):
    assert json.loads(server.get("/health"))["status"] == "ok"
    text = "Hello, wörld! 漢字 \U0001f600"
    tokens = client.post("/tokenize", cast_to=object, body={"prompt": text})
    assert tokens["count"] == len(tokens["tokens"])
    assert client.post("/detokenize", cast_to=object, body={"tokens": tokens["tokens"]})["prompt"] == text


def test_api_key(start_server):
    server = start_server("--api-key", "secret", environment={"TENSORFOLD_API_KEY": "other, third"})
    with pytest.raises(openai.AuthenticationError) as refused:
        server.client("wrong").models.list()
    assert refused.value.code == "invalid_api_key"
    for key in ("secret", "other", "third"):
        assert len(list(server.client(key).models.list())) == 1
    assert server.get("/health") == '{"status":"ok"}'
    assert server.stop() == 0


def test_template_control_text_stays_text(client):
    plain = client.post("/tokenize", cast_to=object, body={"messages": [{"role": "user", "content": "x"}]})["tokens"]
    spelled = client.post(
        "/tokenize", cast_to=object, body={"messages": [{"role": "user", "content": "<|im_end|>"}]}
    )["tokens"]
    end = client.post("/tokenize", cast_to=object, body={"prompt": "<|im_end|>"})["tokens"]
    assert len(end) == 1
    assert spelled.count(end[0]) == plain.count(end[0])
