#!/usr/bin/env bash
# Installs what the long tests need beyond tools/install_dependencies.sh, by package name. Does nothing when all is there.
set -euo pipefail

packages=(clang clang-tidy g++-aarch64-linux-gnu qemu-user googletest)
# libFuzzer and the sanitizers' runtimes of the distribution's clang: a package of its own where the release has one.
version=$(apt-cache depends clang 2>/dev/null | grep -oE 'clang-[0-9]+' | head -1 | grep -oE '[0-9]+' || true)
if [ -n "$version" ] && apt-cache show "libclang-rt-$version-dev" >/dev/null 2>&1; then
  packages+=("libclang-rt-$version-dev")
fi

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q "install ok installed" || missing+=("$package")
done
((${#missing[@]})) || exit 0
echo "Installing: ${missing[*]}"
sudo=""
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || { echo "Run as root, or install these packages yourself: ${missing[*]}" >&2; exit 1; }
  sudo=sudo
fi
$sudo apt-get update -qq
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
