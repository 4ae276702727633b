// Byte pair encoding of one piece of text by ranked merges, equal to the `tokenizers` package's BPE model. Short pieces
// are remembered in a bounded cache; long ones merge through a priority queue, so that a text without spaces costs n
// log n.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizer_model.h"
#include "text/tokenizer_vocabulary.h"

namespace tensorfold {

struct BpeOptions {
  bool byte_fallback = false;
  bool fuse_unknown = false;
  bool ignore_merges = false;  // a piece that is itself a token is that token
  std::int32_t unknown_token = kNoToken;
  std::string continuing_subword_prefix, end_of_word_suffix;
};

/// `vocabulary` outlives the model. Throws Error(kInvalidCheckpoint) for merges that name absent tokens.
std::unique_ptr<TokenizerModel> make_bpe_model(const Vocabulary& vocabulary,
                                               const std::vector<std::pair<std::string, std::string>>& merges,
                                               BpeOptions options);

}  // namespace tensorfold
