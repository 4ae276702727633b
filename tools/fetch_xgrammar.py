#!/usr/bin/env python3
"""Fetches xgrammar's source archive from the package index into .cache/xgrammar (which git ignores), pinned by version
and SHA-256. CMake compiles it from there (cmake/xgrammar.cmake); no Python binding is built.

    python3 tools/fetch_xgrammar.py [--root FOLDER]      does nothing when the pinned sources are there

pip asks an archive's build system for metadata even where it only downloads. We answer that question ourselves, so that
no code of the archive runs and no build tool is installed. The SHA-256 is checked before anything is unpacked, and only
the library's sources, its two header-only parts and their licences are.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSION = "0.2.9"
SHA256 = "87b466bca2475e29bb0323abc62c6c33cbcbcff47e5fb800a3e2099ac9620b90"
ARCHIVE_BYTES_MAX = 64 << 20
# What is unpacked: the library without its bindings, and the headers it includes.
WANTED = ("LICENSE", "NOTICE", "cpp/", "include/", "3rdparty/picojson/picojson.h", "3rdparty/dlpack/LICENSE",
          "3rdparty/dlpack/include/")
UNWANTED = ("cpp/tvm_ffi/",)

# Corrections of the pinned version: (file, text that must occur exactly once, its replacement, why).
CORRECTIONS = [
    ("cpp/tokenizer_info.cc",
     "(token.find(prefix_stack.top().first) == std::string::npos)",
     "(token.compare(0, prefix_stack.top().first.size(), prefix_stack.top().first) != 0)",
     "a token that merely contains another would count as its continuation and be rejected with it"),
]
REVISION = 1  # of this file's way of unpacking and correcting

METADATA_ANSWER = """\
import os


def get_requires_for_build_wheel(config_settings=None):
    return []


def prepare_metadata_for_build_wheel(folder, config_settings=None):
    name = "xgrammar-{version}.dist-info"
    os.mkdir(os.path.join(folder, name))
    with open(os.path.join(folder, name, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\\nName: xgrammar\\nVersion: {version}\\n")
    return name
"""


class FetchError(Exception):
    pass


def download(folder: Path) -> Path:
    answer = folder / "answer" / "scikit_build_core"
    answer.mkdir(parents=True)
    (answer / "__init__.py").write_text("")
    (answer / "build.py").write_text(METADATA_ANSWER.format(version=VERSION))
    requirements = folder / "requirements.txt"
    requirements.write_text(f"xgrammar=={VERSION} --hash=sha256:{SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir",
               "--disable-pip-version-check", "--no-build-isolation", "--no-binary", ":all:", "--require-hashes",
               "--dest", str(folder), "--requirement", str(requirements)]
    environment = {**os.environ, "PYTHONPATH": str(answer.parent)}
    result = subprocess.run(command, env=environment, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        details = (result.stderr or "").strip()
        if "No module named pip" in details:
            raise FetchError("this Python has no pip: install it (apt install python3-pip) and run this again")
        raise FetchError("xgrammar's sources could not be downloaded. Is the package index reachable from here?\n  pip: "
                         + (details.splitlines()[-1] if details else "no message"))
    archives = list(folder.glob("*.tar.gz"))
    if len(archives) != 1:
        raise FetchError(f"expected one source archive, found {len(archives)}")
    if archives[0].stat().st_size > ARCHIVE_BYTES_MAX:
        raise FetchError("the source archive is larger than expected")
    digest = hashlib.sha256(archives[0].read_bytes()).hexdigest()
    if digest != SHA256:
        raise FetchError(f"the source archive has SHA-256 {digest}, expected {SHA256}")
    return archives[0]


def unpack(archive: Path, target: Path) -> None:
    prefix = f"xgrammar-{VERSION}/"
    with tarfile.open(archive) as members:
        for member in members:
            path = member.name.removeprefix(prefix)
            wanted = path.startswith(WANTED) and not path.startswith(UNWANTED)
            if not member.isfile() or not member.name.startswith(prefix) or not wanted or ".." in path.split("/"):
                continue
            file = target / path
            file.parent.mkdir(parents=True, exist_ok=True)
            with members.extractfile(member) as source, file.open("wb") as out:
                shutil.copyfileobj(source, out)


def correct(target: Path) -> None:
    for name, old, new, why in CORRECTIONS:
        text = (target / name).read_text()
        if text.count(old) != 1:
            raise FetchError(f"{name} of xgrammar {VERSION} has changed where we correct it ({why})")
        (target / name).write_text(text.replace(old, new))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="folder that .cache/ lies in (default: this repository)")
    final = parser.parse_args().root / ".cache" / "xgrammar"
    stamp = f"{VERSION} {SHA256} {REVISION}\n"
    if (final / "stamp").exists() and (final / "stamp").read_text() == stamp:
        return 0
    final.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=final.parent) as scratch:
            print(f"Fetching xgrammar {VERSION}'s sources", file=sys.stderr)
            fresh = Path(scratch) / "xgrammar"
            unpack(download(Path(scratch)), fresh)
            correct(fresh)
            (fresh / "stamp").write_text(stamp)
            shutil.rmtree(final, ignore_errors=True)
            fresh.rename(final)
    except FetchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
