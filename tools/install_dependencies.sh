#!/usr/bin/env bash
# Installs what building and testing need on Debian 12 and Ubuntu 24.04, by package name, and fetches xgrammar's sources into
# .cache/. Does nothing when all is there.
#   tools/install_dependencies.sh            build and run
#   tools/install_dependencies.sh --python   also the virtual environment .venv that tests and tools use
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(g++ cmake ninja-build ccache pkg-config git ca-certificates python3 python3-pip python3-venv curl patchelf xz-utils
  nlohmann-json3-dev libfmt-dev libspdlog-dev libssl-dev libpcre2-dev libutf8proc-dev libedit-dev libdeflate-dev libgtest-dev)
# Debian 12's default Boost is older than the coroutine support that the server uses.
if apt-cache show libboost1.81-dev >/dev/null 2>&1; then packages+=(libboost1.81-dev); else packages+=(libboost-dev); fi

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q "install ok installed" || missing+=("$package")
done
if ((${#missing[@]})); then
  echo "Installing: ${missing[*]}"
  sudo=""
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "Run as root, or install these packages yourself: ${missing[*]}" >&2; exit 1; }
    sudo=sudo
  fi
  $sudo apt-get update -qq
  # The Boost choice may have been made on an old package list.
  if ! apt-cache show libboost1.81-dev >/dev/null 2>&1; then
    for i in "${!missing[@]}"; do [ "${missing[$i]}" = libboost1.81-dev ] && missing[i]=libboost-dev; done
  fi
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

python3 tools/fetch_xgrammar.py

if [ "${1:-}" = --python ]; then
  stamp=.venv/requirements.sha256
  wanted=$(sha256sum tests/requirements.txt | cut -d' ' -f1)
  if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ]; then
    echo "Making .venv from tests/requirements.txt"
    python3 -m venv .venv
    .venv/bin/python -m pip install -q --disable-pip-version-check -r tests/requirements.txt
    echo "$wanted" > "$stamp"
  fi
fi
