"""Recall through the real server: the same words again draft from the first time, for the same key alone, also after a
restart; replies stay the same; files are the user's own; what is asked with drafts off leaves nothing."""
import json
import stat
import time
import urllib.request

import pytest

from conftest import RunningServer

PROMPT = "One two three four five six seven eight nine ten, and then again from the start."
TOKENS = 80


def complete(server, key, prompt=PROMPT, **fields):
    body = {"model": "tiny", "prompt": prompt, "max_tokens": TOKENS, "temperature": 1.0, "seed": 5, "ignore_eos": True, **fields}
    request = urllib.request.Request(
        server.root + "/v1/completions", json.dumps(body).encode(),
        {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
    return json.loads(urllib.request.urlopen(request, timeout=60).read())


def recall_counts(reply):
    return reply["speculative"]["sources"].get("recall", {"drafted": 0, "accepted": 0})


def bytes_in(folder):
    return sum(path.stat().st_size for path in folder.rglob("*.recall1"))


def wait_for_bytes(folder, bytes_min):
    """Texts are written behind the reply."""
    deadline = time.monotonic() + 20
    while bytes_in(folder) < bytes_min:
        assert time.monotonic() < deadline, f"{bytes_in(folder)} bytes in {folder}"
        time.sleep(0.02)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "recall"


def start(folder, *flags):
    return RunningServer("--recall-dir", str(folder), "--api-key", "anna", "--api-key", "boris", *flags)


def test_the_same_words_draft_for_their_own_key_also_after_a_restart(folder):
    server = start(folder)
    assert str(folder) in server.wait_for(r"recall: (.*)")
    first = complete(server, "anna")
    assert recall_counts(first)["drafted"] == 0
    wait_for_bytes(folder, 4 * TOKENS)
    second = complete(server, "anna")
    assert second["choices"][0]["text"] == first["choices"][0]["text"]
    assert recall_counts(second)["accepted"] > TOKENS / 2
    assert second["speculative"]["rounds"] < first["speculative"]["rounds"]
    other = complete(server, "boris")
    assert other["choices"][0]["text"] == first["choices"][0]["text"]
    assert recall_counts(other)["drafted"] == 0
    assert server.stop() == 0

    # Keys in another order: labels move, owners don't.
    server = RunningServer("--recall-dir", str(folder), "--api-key", "carla", "--api-key", "boris", "--api-key", "anna")
    assert recall_counts(complete(server, "carla"))["drafted"] == 0
    third = complete(server, "anna")
    assert third["choices"][0]["text"] == first["choices"][0]["text"]
    assert recall_counts(third)["accepted"] > TOKENS / 2
    assert server.stop() == 0


def test_files_are_private_and_read_only_adds_nothing(folder):
    server = start(folder)
    complete(server, "anna")
    wait_for_bytes(folder, 4 * TOKENS)
    assert server.stop() == 0
    for path in [folder, *folder.rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    before = bytes_in(folder)

    server = start(folder, "--recall-read-only")
    server.wait_for(r"recall: .*read only")
    assert recall_counts(complete(server, "anna"))["accepted"] > TOKENS / 2
    complete(server, "anna", prompt="Something that was never said before, in other words entirely.", seed=9)
    assert server.stop() == 0
    assert bytes_in(folder) == before


def test_drafts_off_leaves_nothing(folder):
    server = start(folder)
    reply = complete(server, "anna", draft=False)
    assert reply["speculative"]["drafted"] == 0
    later = complete(server, "anna")
    assert recall_counts(later)["drafted"] == 0
    assert later["choices"][0]["text"] == reply["choices"][0]["text"]
    assert server.stop() == 0


def test_without_the_flag_nothing_is_written(tmp_path):
    server = RunningServer(environment={"HOME": str(tmp_path)})
    complete(server, "none")
    assert server.stop() == 0
    assert list(tmp_path.iterdir()) == []
