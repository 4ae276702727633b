"""Kept prefixes through the real server: what `cached_tokens` says, who shares with whom, restarts. Replies are compared
with those of a server that keeps nothing."""
import concurrent.futures
import json

import pytest

SYSTEM = "You answer in short sentences. " * 6
SECRETS = [f"The password of account {i} is {i * 7919 % 100003}. " * 3 for i in range(16)]


def chat(client, messages, seed=11, tokens=12):
    reply = client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=tokens, seed=seed, temperature=0.9, extra_body={"ignore_eos": True}
    )
    return reply


def user(text, system=SYSTEM):
    return [{"role": "system", "content": system}, {"role": "user", "content": text}]


def cached(reply):
    return reply.usage.prompt_tokens_details.cached_tokens


def sha(reply):
    return reply.model_extra["tensorfold"]["token_sha"]


@pytest.fixture
def fresh(start_server):
    return start_server("--context", "512", "--prompt-cache-gib", "0").client()


def test_the_same_request_again(start_server, fresh):
    client = start_server("--context", "512").client()
    first = chat(client, user("Tell me about the sea."))
    again = chat(client, user("Tell me about the sea."))
    assert cached(first) == 0
    assert cached(again) == again.usage.prompt_tokens - 1
    assert sha(first) == sha(again) == sha(chat(fresh, user("Tell me about the sea.")))
    assert cached(chat(fresh, user("Tell me about the sea."))) == 0


def test_health_counts_what_was_reused(start_server):
    server = start_server("--context", "512")
    client = server.client()
    replies = [chat(client, user("Tell me about the sea.")) for _ in range(3)]
    health = json.loads(server.get("/health"))
    assert health["cached_tokens_total"] == sum(cached(reply) for reply in replies) > 0
    assert (health["prefixes"]["queries_total"], health["prefixes"]["hits_total"]) == (3, 2)
    assert 0 < health["prefixes"]["bytes"] <= health["prefixes"]["bytes_max"]


def test_other_requests_share_the_system_prompt(start_server, fresh):
    client = start_server("--context", "512").client()
    chat(client, user("What is a tree?"))
    other = chat(client, user("How far is the moon?"))
    assert 64 <= cached(other) < other.usage.prompt_tokens - 1
    assert sha(other) == sha(chat(fresh, user("How far is the moon?")))


def test_keys_do_not_share_unless_told(start_server):
    keys = ["--api-key", "first-key", "--api-key", "second-key"]
    apart = start_server("--context", "512", *keys)
    together = start_server("--context", "512", "--prompt-cache-scope", "all", *keys)
    for server, shared in ((apart, False), (together, True)):
        one, two = server.client("first-key"), server.client("second-key")
        reply = chat(one, user(SECRETS[0]))
        other = chat(two, user(SECRETS[0]))
        assert (cached(other) > 0) == shared
        assert sha(other) == sha(reply)
        assert cached(chat(one, user(SECRETS[0]))) == reply.usage.prompt_tokens - 1


def test_a_tiny_cache_leaks_nothing(start_server, fresh):
    client = start_server("--context", "512", "--prompt-cache-gib", "0.0005").client()
    expected = [sha(chat(fresh, user(secret), seed=i)) for i, secret in enumerate(SECRETS)]

    def ask(i):
        reply = chat(client, user(SECRETS[i]), seed=i)
        return i, sha(reply), cached(reply), reply.usage.prompt_tokens

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for i, reply_sha, known, prompt in pool.map(ask, list(range(16)) * 3):
            assert reply_sha == expected[i]
            assert 0 <= known < prompt


def test_a_conversation_survives_a_restart(start_server, fresh, tmp_path):
    flags = ["--context", "512", "--learn-conversations", "--learn-dir", str(tmp_path), "--learn-min-free-gib", "0"]
    messages = user("Count to ten. " * 8)
    first_server = start_server(*flags)
    first_server.wait_for("learning: ")
    first = chat(first_server.client(), messages)
    assert first.usage.prompt_tokens >= 256, "the prompt is too short to be learned"
    first_server.stop()
    messages = messages + [
        {"role": "assistant", "content": first.choices[0].message.content or ""},
        {"role": "user", "content": "And on to twelve."},
    ]
    second = chat(start_server(*flags).client(), messages)
    assert cached(second) >= 256
    assert sha(second) == sha(chat(fresh, messages))
    text = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"Count to ten" not in text


def test_a_second_server_on_the_folder_serves_without_it(start_server, tmp_path):
    flags = ["--context", "512", "--learn", "--learn-dir", str(tmp_path)]
    start_server(*flags).wait_for("learning: ")
    second = start_server(*flags)
    second.wait_for("learning is off: another process")
    assert chat(second.client(), user("Hello.")).usage.completion_tokens == 12


@pytest.mark.parametrize("flags", [["--learn", "--prompt-cache-gib", "0"], ["--learn-daily-gib", "1"]])
def test_flags_that_contradict_each_other(start_server, flags):
    with pytest.raises(AssertionError, match="no 'listening"):
        start_server(*flags)
