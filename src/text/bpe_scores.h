// SentencePiece's own merging, as GGUF files of model "llama" ask for: neighbours join when their text is a token, best
// score first. No merge list exists; characters that no token spells become byte tokens.
#pragma once

#include <memory>
#include <vector>

#include "text/tokenizer_model.h"
#include "text/tokenizer_vocabulary.h"

namespace tensorfold {

/// `vocabulary` outlives the model; `scores` has one entry for each id.
std::unique_ptr<TokenizerModel> make_score_model(const Vocabulary& vocabulary, std::vector<float> scores,
                                                 std::int32_t unknown_token);

}  // namespace tensorfold
