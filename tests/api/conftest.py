"""Starts the real server on a small checkpoint for the SDK tests and hands out clients."""
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request

import openai
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("TENSORFOLD_BINARY", ROOT / "build/release/bin/tensorfold"))
MODEL = pathlib.Path(os.environ.get("TENSORFOLD_TEST_MODEL", ROOT / "tests/golden/models/qwen3"))
START_SECONDS = 60


class RunningServer:
    """One server process on a free port; its log is kept for assertions."""

    def __init__(self, *flags, model=MODEL, environment=None):
        if not BINARY.exists():
            pytest.skip(f"{BINARY} is not built")
        if not model.exists():
            pytest.skip(f"no test checkpoint at {model}")
        command = [str(BINARY), "serve", str(model), "--port", "0", "--name", "tiny", "--context", "256", *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})})
        self.log = []
        self.changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        self.url = self.wait_for(r"listening on (http://\S+)")
        self.wait_for(r"serving tiny at")

    def _read(self):
        for line in self.process.stderr:
            with self.changed:
                self.log.append(line)
                self.changed.notify_all()

    def wait_for(self, pattern, seconds=START_SECONDS):
        deadline = time.monotonic() + seconds
        with self.changed:
            while True:
                for line in self.log:
                    found = re.search(pattern, line)
                    if found:
                        return found.group(found.lastindex or 0)
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise AssertionError(f"no {pattern!r} in the log:\n" + "".join(self.log))
                self.changed.wait(0.2)

    @property
    def root(self):
        return self.url.removesuffix("/v1")

    def get(self, path):
        return urllib.request.urlopen(self.root + path, timeout=10).read().decode()

    def post(self, path, body):
        """Status and JSON of a raw request: what no SDK would send."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.root + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.status, json.loads(reply.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def client(self, key="none"):
        return openai.OpenAI(base_url=self.url, api_key=key, max_retries=0, timeout=120)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError("the server didn't stop:\n" + "".join(self.log[-80:])) from None


@pytest.fixture(scope="session")
def server():
    running = RunningServer("--alias", "small")
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="session")
def client(server):
    return server.client()


@pytest.fixture
def start_server():
    """Starts further servers with flags of their own; all end with the test."""
    started = []

    def start(*flags, **options):
        started.append(RunningServer(*flags, **options))
        return started[-1]

    yield start
    for running in started:
        if running.process.poll() is None:
            running.stop()
