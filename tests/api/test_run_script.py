"""`./run` refuses what can't work before it builds anything: these calls must end at once, with a message and status 2."""
import json
import os
import pathlib
import socket
import subprocess

import pytest

from conftest import BINARY, ROOT


def refused(*words, folder=ROOT, environment=None):
    """What `./run` says. One that isn't refused would build and serve: it runs into the bound instead."""
    run = subprocess.run([str(ROOT / "run"), *words], cwd=folder, env={**os.environ, **(environment or {})},
                         capture_output=True, text=True, timeout=20)
    assert run.returncode == 2, run.stdout + run.stderr
    assert run.stdout == ""
    return run.stderr


@pytest.mark.parametrize("words, message", [
    ([""], "empty"),
    (["--no-thinkin"], "unknown flag --no-thinkin"),
    (["--schedules", "3"], "unknown flag --schedules"),  # verify's, not serve's
    (["--port"], "--port needs a value"),
    (["--port", "abc"], "from 1 to 65535"),
    (["--port=65536"], "from 1 to 65535"),
    (["no/such/folder"], "neither here nor"),
    (["README.md"], "not a .gguf file"),
    (["docs"], "no config.json"),
    (["models/demo", "models/demo"], "one model"),
    (["--smollm2", "models/demo"], "leave out"),
])
def test_refusals(words, message):
    assert message in refused(*words)


def test_port_variable_and_flag(tmp_path):
    assert "from 1 to 65535" in refused(environment={"PORT": "abc"})
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        message = refused(environment={"PORT": port})
        assert f"port {port} is in use" in message and "PORT=" in message
        assert f"port {port} is in use" in refused("--port", port, environment={"PORT": "1"})


def test_paths_are_the_callers(tmp_path):
    assert "neither here nor" in refused("models/demo", folder=tmp_path)


def test_knows_every_flag_of_serve():
    """They are read from the source of the flag table: one that the script misreads would be refused before the last."""
    if not BINARY.exists():
        pytest.skip(f"{BINARY} is not built")
    capabilities = json.loads(subprocess.run([str(BINARY), "capabilities", "--json"], capture_output=True, check=True).stdout)
    flags = capabilities["serve"]["flags"]
    assert len(flags) > 30
    words = [f"{name}=8080" for name in flags]
    assert "unknown flag --last" in refused(*words, "--last")
