"""Command lines, checkpoints and terminals that once went wrong, against the real binary."""
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import time

import pytest
from conftest import BINARY, MODEL


@pytest.fixture
def checkpoint(tmp_path):
    if not BINARY.exists() or not MODEL.exists():
        pytest.skip("needs the built binary and the golden checkpoint")
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder)
    return folder


def chat(folder, *flags):
    """Loads the model, reads an empty conversation and ends."""
    command = [str(BINARY), "chat", str(folder), "--threads", "1", "--context", "64", *flags]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)


def test_hangup_does_not_end_the_server(start_server):
    server = start_server()
    server.process.send_signal(signal.SIGHUP)
    server.wait_for("SIGHUP: there is no key file")
    assert json.loads(server.get("/health"))["status"] == "ok"


def test_a_signal_that_comes_twice_at_once_still_drains(start_server):
    for _ in range(5):
        server = start_server()
        for _ in range(3):
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.001)
        assert server.process.wait(timeout=30) == 0, "".join(server.log)


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
@pytest.mark.parametrize("value", [5000, -1, "x", [1, 2**40], 1.5])
def test_end_tokens_outside_the_vocabulary_are_refused(checkpoint, file, value):
    config = json.loads((checkpoint / file).read_text())
    config["eos_token_id"] = value
    (checkpoint / file).write_text(json.dumps(config))
    result = chat(checkpoint)
    assert result.returncode == 1
    assert "eos_token_id" in result.stderr


def test_a_template_that_is_a_folder_or_empty_is_refused(checkpoint, tmp_path):
    empty = tmp_path / "empty.jinja"
    empty.write_text("")
    for path, wanted in ((tmp_path, "not a folder"), (empty, "is empty"), (tmp_path / "absent", "check the path")):
        result = chat(checkpoint, "--chat-template", str(path))
        assert result.returncode == 1 and wanted in result.stderr, result.stderr


def test_a_broken_file_of_the_checkpoint_is_named(checkpoint):
    cases = {
        "chat_template.jinja": "{% if %}",
        "tokenizer.json": "",
        "tokenizer_config.json": '{"cut',
        "config.json": "{}",
    }
    for name, text in cases.items():
        before = (checkpoint / name).read_bytes() if (checkpoint / name).exists() else None
        (checkpoint / name).write_text(text)
        result = chat(checkpoint)
        assert result.returncode == 1 and name in result.stderr and str(checkpoint) in result.stderr, result.stderr
        assert "json.exception" not in result.stderr
        (checkpoint / name).unlink() if before is None else (checkpoint / name).write_bytes(before)


def test_a_list_without_keys_does_not_open_the_server(checkpoint):
    for keys in ("", " , "):
        environment = os.environ | {"TENSORFOLD_API_KEY": keys}
        command = [str(BINARY), "serve", str(checkpoint), "--port", "0"]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert result.returncode == 2 and "TENSORFOLD_API_KEY" in result.stderr, result.stderr


def test_names_from_a_file_cannot_drive_the_terminal(checkpoint):
    model = checkpoint / "model.safetensors"
    data = model.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["\x1b[2Jevil"] = {"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]}
    text = json.dumps(header).encode()
    model.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
    result = chat(checkpoint)
    assert result.returncode == 1 and "evil" in result.stderr
    assert "\x1b" not in result.stderr


def test_chat_reads_utf8_on_a_terminal(checkpoint, tmp_path):
    process, terminal = pty.fork()
    if process == 0:
        environment = {key: value for key, value in os.environ.items() if key != "LANG" and not key.startswith("LC_")}
        environment |= {"HOME": str(tmp_path), "TERM": "xterm"}
        words = [str(BINARY), "chat", str(checkpoint), "--threads", "1", "--max-tokens", "2"]
        os.execve(words[0], words, environment)
    seen = b""

    def until(marker):
        nonlocal seen
        deadline = time.monotonic() + 60
        while marker not in seen and time.monotonic() < deadline:
            if not select.select([terminal], [], [], 0.2)[0]:
                continue
            try:
                seen += os.read(terminal, 4096)
            except OSError:  # the other side has closed
                break
        assert marker in seen, seen
        seen = seen.split(marker, 1)[1]

    until(b"> ")
    os.write(terminal, "/é漢字\r".encode())
    until("unknown command /é漢字;".encode())
    until(b"> ")
    os.write(terminal, b"/exit\r")
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    os.close(terminal)


def tensorfold(*words):
    return subprocess.run([str(BINARY), *map(str, words)], capture_output=True, text=True, timeout=60)


def test_a_command_line_that_cannot_be_meant_is_a_usage_error(checkpoint, tmp_path):
    for words, wanted in (
        (("serve", checkpoint, "--api-key", ""), "empty"),
        (("serve", checkpoint, "--parallel", 100000), "between 1 and 256"),
        (("serve", checkpoint, "--parallel", 0), "between 1 and 256"),
        (("convert", checkpoint, tmp_path / "out", "--bits", 7), "7 bits"),
    ):
        result = tensorfold(*words)
        assert result.returncode == 2 and wanted in result.stderr, result.stderr


def test_help_says_what_a_command_does(checkpoint):
    for command in ("serve", "chat", "info", "verify", "convert", "bench", "capabilities"):
        result = tensorfold(command, "--help")
        assert result.returncode == 0 and result.stdout.startswith("usage:") and result.stdout.count("\n") > 2
    assert "[flags]\n" not in tensorfold("--help").stdout.splitlines()[-1]


def test_a_conversion_that_quantises_nothing_and_a_short_check_say_so(checkpoint, tmp_path):
    result = tensorfold("convert", checkpoint, tmp_path / "out", "--mixed", "*=none")
    assert result.returncode == 0 and "no matrix was quantised" in result.stdout, result.stderr
    result = tensorfold("verify", checkpoint, "--schedules", 1, "--threads", 1)
    assert result.returncode == 0 and "not exercised: " in result.stdout, result.stderr
