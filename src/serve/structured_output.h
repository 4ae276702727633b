// What structured output needs of a model, beside its engine: the vocabulary as bytes with a grammar compiler over it,
// and how the model's reasoning block ends. Made when the first request asks for it, because a large vocabulary takes
// a moment to sort; shared by all requests from then on.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"
#include "text/reasoning.h"
#include "text/tokenizer.h"

namespace tensorfold {

/// How a reasoning block is told from the answer, token by token.
struct ThoughtMarks {
  std::string close;                      // the text that ends the block; "" = the model has no blocks
  std::optional<std::int32_t> opener;     // a token that opens the block, where the model may do so itself
  std::vector<std::int32_t> mark_tokens;  // tokens that are a mark by themselves: never part of an answer's text
  /// Tokens that would end the block and begin the answer at once, by how many bytes of `close` stand already: an
  /// answer begins with a token of its own, so that its grammar holds from its first byte.
  std::vector<std::vector<std::int32_t>> straddling;
};

class StructuredOutput {
 public:
  StructuredOutput(std::shared_ptr<const Tokenizer> tokenizer, std::int32_t vocabulary_size, ReasoningFormat format)
      : tokenizer_(std::move(tokenizer)), vocabulary_size_(vocabulary_size), format_(format) {}

  /// Blocking, on a worker; any thread. Throws Error(kInvalidArgument) for a source that can't be compiled.
  std::shared_ptr<const CompiledGrammar> compile(const GrammarSource& source);
  /// Blocking as well, the first time.
  const ThoughtMarks& marks();
  std::int32_t vocabulary_size() const { return vocabulary_size_; }

 private:
  void prepare();

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::int32_t vocabulary_size_;
  ReasoningFormat format_;
  std::once_flag prepared_;
  std::shared_ptr<GrammarCompiler> compiler_;
  ThoughtMarks marks_;
};

}  // namespace tensorfold
