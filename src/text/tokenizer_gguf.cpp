#include "base/error.h"
#include "text/tokenizer.h"
namespace tensorfold {
std::shared_ptr<const Tokenizer> Tokenizer::from_gguf(GgufVocabulary vocabulary) {
  fail(ErrorCode::kUnsupported, "{}", vocabulary.model);
}
}  // namespace tensorfold
