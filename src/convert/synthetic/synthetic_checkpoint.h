// A checkpoint that was never trained: random weights of a real model's true shapes and formats, made on the spot, so
// that the speed of a large model can be measured without having it, here and in other engines. It is a Checkpoint like
// one on disk; nothing behind that interface can tell.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf_writer.h"
#include "convert/synthetic/vocabulary.h"

namespace tensorfold {

struct SyntheticOptions {
  std::string preset;              // "qwen3.8-27b"; see presets.h
  std::string format = "affine4";  // of the matrices; see synthetic_formats()
  bool gguf = false;               // names and metadata of a GGUF file: always with its block formats, on demand with bf16
  std::int64_t layers = 0;         // instead of the model's own; 0: those
  std::int64_t vocabulary = 0;     // tokens, likewise: tests have no use for large tables
  bool mtp = false;                // with the model's MTP head
  std::uint64_t seed = 1;
  int threads = 0;                 // to fill with; 0: all cores
};

/// "affine4" (MLX, group 64), "bf16", "q4_0", "q4_1", "q8_0".
const std::vector<std::string_view>& synthetic_formats();

struct SyntheticModel {
  std::shared_ptr<const Checkpoint> checkpoint;
  SyntheticVocabulary vocabulary;
  std::vector<GgufEntry> gguf_metadata;  // of a GGUF file; else empty
};

/// Throws Error(kInvalidArgument) for a preset, format or layer count that doesn't exist.
SyntheticModel make_synthetic_model(const SyntheticOptions& options);

}  // namespace tensorfold
