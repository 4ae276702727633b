#!/usr/bin/env bash
# llama-bench of llama.cpp with its CUDA backend, graphs and flash attention on, for this machine's processor and Hopper GPUs.
#   bench/peers/build_llama.sh SOURCE BUILD     SOURCE: vendor/llama.cpp of the llama-cpp-python archive that requirements.txt names
set -euo pipefail
export PATH=/usr/local/cuda/bin:$PATH
generator=()
command -v ninja >/dev/null && generator=(-G Ninja)
cmake -S "$1" -B "$2" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
  -DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="${CUDA_ARCHITECTURES:-90-real}" -DGGML_CUDA_GRAPHS=ON -DGGML_CUDA_FA=ON \
  -DGGML_CUDA_FA_ALL_QUANTS=OFF -DGGML_CUDA_NCCL=OFF -DGGML_NATIVE=ON -DGGML_OPENMP=OFF -DGGML_CCACHE=OFF \
  -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF \
  -DLLAMA_OPENSSL=OFF -DLLAMA_SUBPROCESS=OFF
cmake --build "$2" --target llama-bench -j "${TENSORFOLD_JOBS:-$(nproc)}"
