"""`tensorfold bench`: every part on a small model that is made up, its two reports, and what it hands to others."""

import json
import pathlib
import subprocess

import pytest

from conftest import BINARY, ROOT

SMALL = ["--synthetic", "smollm2-135m", "--layers", "2", "--context", "40", "--reply-tokens", "4", "--backend", "cpu"]


def bench(*arguments):
    if not BINARY.exists():
        pytest.skip("needs the built binary")
    command = [str(BINARY), "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_every_part_and_the_report():
    result = bench("kernels", "decode", "prefill", "concurrency", "load", *SMALL, "--streams", "1,3", "--rows", "1,4,32",
                   "--prompt-tokens", "48", "--peak-gbps", "20", "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(result.stdout)
    assert report["model"] == "synthetic:smollm2-135m" and report["backend"] == "cpu" and report["commit"]
    assert report["command"].startswith("tensorfold bench kernels decode") and report["machine"]["cores"] > 0
    assert report["synthetic"]["layers"] == 2 and report["synthetic"]["format"] == "affine4"
    assert report["check"]["not_finite"] == 0 and 0 < report["check"]["largest_logit"] < 100
    assert len(report["load"]["seconds"]["samples"]) == 3 and report["load"]["gigabytes_per_second"] > 0
    decode = report["decode"]
    assert decode["stream"]["tokens_per_second"]["median"] > 0
    assert [window["rows"] for window in decode["windows"]] == [1, 4, 32] and decode["windows"][0]["of_first"] == 1
    assert report["prefill"][0]["prompt_tokens"] == 48 and report["prefill"][0]["tokens_per_second"]["median"] > 0
    rows = report["concurrency"]["rows"]
    assert [(row["streams"], row["compared_streams"], row["differing_streams"]) for row in rows] == [(1, 1, 0), (3, 3, 0)]
    assert rows[0]["token_hash"] == decode["stream"]["token_hash"]
    passes = report["kernels"]["passes"]
    assert [(one["lanes"], one["rows"], one["commits"]) for one in passes] == [
        (1, 1, False), (1, 4, False), (1, 32, True), (1, 1, False), (3, 1, False)]
    for one in passes:
        names = [operation["name"] for operation in one["operations"]]
        assert any(name.startswith("mlp.{gate,up}_proj") for name in names) and "attention" in names
        assert all(operation["bytes"] / 20e9 == pytest.approx(operation["floor_seconds"]) for operation in one["operations"])
        assert one["sum"]["calls"] == sum(operation["calls"] for operation in one["operations"])


def test_threads_do_not_change_tokens_and_people_can_read_it():
    results = [bench("decode", *SMALL, "--rows", "1,2", "--threads", threads) for threads in ("1", "2")]
    hashes = set()
    for result in results:
        assert result.returncode == 0, result.stderr
        assert "logits all finite" in result.stdout and "of 1 row" in result.stdout
        line = next(line for line in result.stdout.splitlines() if line.startswith("decode"))
        hashes.add(line.split()[-1])
    assert len(hashes) == 1


def test_drafts_are_compared_on_a_real_checkpoint(tmp_path):
    model = str(ROOT / "tests/golden/models/qwen3_5_mtp")
    result = bench(model, "decode", "--compare-drafts", "--repeat-passage", "7", "--context", "30", "--reply-tokens", "8",
                   "--rows", "1", "--json", "--output", str(tmp_path / "report.json"))
    assert result.returncode == 0, result.stdout + result.stderr
    assert (tmp_path / "report.json").read_text() == result.stdout
    stream = json.loads(result.stdout)["decode"]["stream"]
    assert stream["with_drafts"]["token_hash"] == stream["token_hash"] and stream["with_drafts"]["drafted"] > 0
    assert stream["drafted"] == 0 and stream["drafted_over_serial"] > 0


@pytest.mark.parametrize("kind", ["gguf", "mlx"])
def test_a_model_that_is_handed_over_is_served_with_its_tokenizer(kind, tmp_path, start_server):
    target = tmp_path / ("model.gguf" if kind == "gguf" else "model")
    layers = ["--synthetic", "smollm2-135m", "--layers", "1"]
    flags = ["--format", "q4_0", "--write-gguf"] if kind == "gguf" else ["--write-mlx"]
    written = bench(*layers, *flags, str(target))
    assert written.returncode == 0 and "written" in written.stdout, written.stderr
    running = start_server(model=pathlib.Path(target))
    reply = running.client().completions.create(model="any", prompt="any text", max_tokens=3, temperature=0)
    assert reply.usage.completion_tokens == 3 and reply.usage.prompt_tokens == 7  # letters; the one merge is met
    again = bench(*layers, *flags, str(target))
    assert again.returncode == 1 and "exists already" in again.stderr


def test_wrong_arguments():
    assert bench("decode").returncode == 2
    assert bench("decode", "--synthetic", "gpt-5").returncode == 2
    assert bench("nowhere/at/all", "decode").returncode == 1
    assert "GGUF" in bench("decode", "--synthetic", "qwen3.8-27b", "--format", "q4_0").stderr
    beyond = bench("decode", *SMALL[:4], "--context", "9000")
    assert beyond.returncode == 1 and "8192" in beyond.stderr
    helped = bench("--help")
    assert helped.returncode == 0 and "benchmark" in helped.stdout
    other = subprocess.run([str(BINARY), "benchmark"], capture_output=True, text=True)
    assert other.returncode == 2 and "'bench' measures this engine" in other.stderr
