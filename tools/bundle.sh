#!/usr/bin/env bash
# Bundles the release binary with its shared libraries so that it runs on another distribution (glibc of this machine or
# newer): DIR/tensorfold with DIR/lib beside it, found through $ORIGIN/lib.
#   tools/bundle.sh [DIR]     default: build/bundle/tensorfold
set -euo pipefail
cd "$(dirname "$0")/.."
binary=build/release/bin/tensorfold
[ -x "$binary" ] || { echo "build first: cmake --preset release && cmake --build build/release --target tensorfold" >&2; exit 1; }
target=${1:-build/bundle/tensorfold}
rm -rf "$target"
mkdir -p "$target/lib"
cp "$binary" "$target/tensorfold"
# The C library and the loader stay the system's own: mixing them with another system's is what breaks.
ldd "$binary" | awk '/=> \//{print $3}' | grep -vE '/(libc|libm|libpthread|libdl|librt|ld-linux[^/]*)\.so' | while read -r library; do
  cp -L "$library" "$target/lib/"
done
strip --strip-unneeded "$target/tensorfold" "$target"/lib/*
patchelf --set-rpath '$ORIGIN/lib' "$target/tensorfold"
for library in "$target"/lib/*; do patchelf --set-rpath '$ORIGIN' "$library"; done
mkdir -p "$target/licenses/xgrammar"
cp .cache/xgrammar/LICENSE .cache/xgrammar/NOTICE "$target/licenses/xgrammar/"
cp .cache/xgrammar/3rdparty/dlpack/LICENSE "$target/licenses/xgrammar/LICENSE.dlpack"
# picojson's licence is the comment at the head of its one file.
sed '/\*\//q' .cache/xgrammar/3rdparty/picojson/picojson.h > "$target/licenses/xgrammar/LICENSE.picojson"
size_mib=$(du -sm "$target" | cut -f1)
echo "$target: $size_mib MiB, $(ls "$target/lib" | wc -l) libraries"
if [ "$size_mib" -gt 40 ]; then echo "the bundle is over its 40 MiB budget" >&2; exit 1; fi
env -i "$target/tensorfold" --version
