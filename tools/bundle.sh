#!/usr/bin/env bash
# Bundles the release binary with its shared libraries so that it runs on another distribution (glibc of this machine or
# newer): DIR/tensorfold with DIR/lib beside it, found through $ORIGIN/lib.
#   tools/bundle.sh [--with PROGRAM]... [DIR]     default: build/bundle/tensorfold
# DIR is made, or is empty, or holds an earlier bundle, which is replaced; any other folder is refused.
# --with adds a program of build/release/bin (test_ops_cuda, test_model_cuda, prefix_reuse, ...), so that the bundle can be checked
# on a machine that builds nothing: tools/device_check.sh --binaries DIR.
set -euo pipefail
# Most a bundle may take, so that a new dependency or unstripped symbols are noticed: program and libraries are 18 MiB, the
# CUDA backend's kernels 43 MiB for one GPU architecture.
cpu_budget_mib=40 architecture_budget_mib=60
marker=.tensorfold-bundle

usage() { sed -n '2,7s/^# \{0,1\}//p' "$0"; }
refuse() { echo "bundle.sh: $*" >&2; exit 1; }
programs=(tensorfold)
while [ $# -gt 0 ]; do
  case $1 in
    -h|--help) usage; exit 0 ;;
    --with)
      [[ ${2:-} =~ ^[A-Za-z0-9_]+$ ]] || { echo "bundle.sh: --with wants a program's name" >&2; usage >&2; exit 2; }
      programs+=("$2")
      shift 2 ;;
    -*) echo "bundle.sh: unknown argument $1" >&2; usage >&2; exit 2 ;;
    *) break ;;
  esac
done
[ $# -le 1 ] || { usage >&2; exit 2; }
[ $# -eq 0 ] || [ -n "$1" ] || refuse "DIR is empty"
repository=$(cd "$(dirname "$0")/.." && pwd)
target=$(realpath -m -- "${1:-$repository/build/bundle/tensorfold}")
cd "$repository"

for program in "${programs[@]}"; do
  [ -x "build/release/bin/$program" ] || refuse "build first: cmake --preset release && cmake --build build/release --target $program"
done
if [ -e "$target" ]; then
  [ -d "$target" ] || refuse "$target isn't a folder"
  [ -f "$target/$marker" ] || [ -z "$(ls -A -- "$target")" ] ||
    refuse "$target isn't empty and holds no earlier bundle (no file $marker); nothing was touched"
fi
mkdir -p "$target"
touch "$target/$marker"  # first, so that a run that failed half-way can be repeated
for program in tensorfold $(cat "$target/$marker"); do rm -f -- "${target:?}/$program"; done  # the earlier bundle's
printf '%s\n' "${programs[@]}" > "$target/$marker"
rm -rf -- "$target/lib" "$target/licenses"
mkdir "$target/lib"

for program in "${programs[@]}"; do
  cp "build/release/bin/$program" "$target/$program"
  # The C library and the loader stay the system's own: mixing them with another system's is what breaks.
  ldd "$target/$program" | awk '/=> \//{print $3}' | grep -vE '/(libc|libm|libpthread|libdl|librt|ld-linux[^/]*)\.so' |
    while read -r library; do cp -L "$library" "$target/lib/"; done
  strip --strip-unneeded "$target/$program"
  patchelf --set-rpath '$ORIGIN/lib' "$target/$program"
done
strip --strip-unneeded "$target"/lib/*
for library in "$target"/lib/*; do patchelf --set-rpath '$ORIGIN' "$library"; done
mkdir -p "$target/licenses/xgrammar"
cp .cache/xgrammar/LICENSE .cache/xgrammar/NOTICE "$target/licenses/xgrammar/"
cp .cache/xgrammar/3rdparty/dlpack/LICENSE "$target/licenses/xgrammar/LICENSE.dlpack"
# picojson's licence is the comment at the head of its one file.
sed '/\*\//q' .cache/xgrammar/3rdparty/picojson/picojson.h > "$target/licenses/xgrammar/LICENSE.picojson"

env -i "$target/tensorfold" --version || refuse "the bundled program doesn't start"
budget_mib=$((cpu_budget_mib * ${#programs[@]})) kind="CPU alone"
if "$target/tensorfold" capabilities --json |
    python3 -c 'import json, sys; sys.exit("cuda" not in json.load(sys.stdin)["backends"])'; then
  architectures=$( (grep -oE 'code=sm_[0-9a-z]+' build/release/build.ninja 2>/dev/null || true) | sort -u | wc -l)
  [ "$architectures" -gt 0 ] || architectures=1
  budget_mib=$(((cpu_budget_mib + architectures * architecture_budget_mib) * ${#programs[@]})) kind="CUDA for $architectures GPU architecture(s)"
fi
size_mib=$(du -sm "$target" | cut -f1)
echo "$target: $size_mib MiB (budget $budget_mib: $kind), $(ls "$target/lib" | wc -l) libraries"
[ "$size_mib" -le "$budget_mib" ] || refuse "the bundle is over its budget of $budget_mib MiB"
