"""`tensorfold verify`: the fold test as a user's command, on a checkpoint with every kind of state and an MTP head."""

import json
import pathlib
import subprocess

import pytest

from conftest import BINARY

ROOT = pathlib.Path(__file__).resolve().parents[2]


def verify(*arguments):
    if not BINARY.exists():
        pytest.skip("needs the built binary")
    command = [str(BINARY), "verify", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_reports_every_mechanism_and_no_differing_bit():
    result = verify(str(ROOT / "tests/golden/models/qwen3_5_mtp"), "--schedules", "12", "--seed", "5", "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(result.stdout)
    assert report["schedules"] == 12 and report["rows"] > 1000 and report["differing_bits"] == 0
    wanted = ["streams_without_logits", "windows_chain", "windows_tree", "accepted", "rules", "penalties", "cancelled", "resumed", "engine_restarts"]
    assert all(report["mechanisms"][name] > 0 for name in wanted), report["mechanisms"]


def test_a_model_with_drafters_is_verified_with_them():
    """The real sources: the demo model's MTP layer and DFlash2 drafter, copies and the recall store."""
    result = verify(str(ROOT / "models/demo"), "--schedules", "9", "--seed", "3", "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(result.stdout)
    assert report["rows"] > 1000 and report["differing_bits"] == 0
    counts = report["mechanisms"]
    assert counts["schedules_with_own_sources"] == 3
    for source in ("mtp", "block", "copy", "recall", "oracle"):
        assert counts["drafted_" + source] > 0 and counts["accepted_" + source] > 0, counts


def test_speaks_to_people_too():
    result = verify(str(ROOT / "tests/golden/models/llama"), "--schedules", "1")
    assert result.returncode == 0, result.stderr
    assert "differing bits: 0" in result.stdout and "Every row and token that was compared equals" in result.stdout


def test_wrong_arguments():
    assert verify("nowhere/at/all").returncode == 1
    assert verify(str(ROOT / "tests/golden/models/llama"), "--schedules", "0").returncode == 2
