// A vocabulary of the right size for a model that was made up: every byte, one merge, and fillers. Enough for a
// tokenizer to load and to encode any text; what the tokens spell doesn't matter to speed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tensorfold {

struct SyntheticVocabulary {
  std::vector<std::string> tokens;  // in the alphabet of byte-level BPE
  std::vector<std::int32_t> types;  // GGUF's: 1 normal, 3 control
  std::vector<std::string> merges;
  std::int32_t bos_token = -1, eos_token = -1;
  std::string pre_tokenizer;
};

/// `bos_token` may be -1. Throws Error(kInvalidArgument) when `size` doesn't hold the bytes and the special tokens.
SyntheticVocabulary make_vocabulary(std::int32_t size, std::int32_t bos_token, std::int32_t eos_token,
                                    std::string pre_tokenizer);

}  // namespace tensorfold
