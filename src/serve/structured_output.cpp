// See structured_output.h.
#include "serve/structured_output.h"

#include <algorithm>

namespace tensorfold {
namespace {

struct MarkTexts {
  std::string_view open;
  std::string_view close;
};

MarkTexts mark_texts(ReasoningFormat format) {
  if (format == ReasoningFormat::kThink) return {"<think>", "</think>"};
  if (format == ReasoningFormat::kChannel) return {"<|channel>", "<channel|>"};
  return {};
}

/// Whether `bytes`, after the first `known` bytes of the mark, complete it and go on with the answer. Line ends belong
/// to the mark (ReasoningSplitter drops them).
bool straddles(const std::string& mark, std::size_t known, const std::string& bytes) {
  const std::string text = mark.substr(0, known) + bytes;
  const std::size_t found = text.find(mark);
  return found != std::string::npos && text.find_first_not_of("\r\n", found + mark.size()) != std::string::npos;
}

ThoughtMarks find_marks(const Tokenizer& tokenizer, ReasoningFormat format, const std::vector<std::string>& bytes) {
  ThoughtMarks marks;
  const MarkTexts texts = mark_texts(format);
  if (texts.close.empty()) return marks;
  marks.close = texts.close;
  marks.opener = tokenizer.token_id(texts.open);
  for (const std::string_view text : {texts.open, texts.close}) {
    if (const auto id = tokenizer.token_id(text)) marks.mark_tokens.push_back(*id);
  }
  marks.straddling.resize(marks.close.size());
  for (std::size_t id = 0; id < bytes.size(); ++id) {
    if (bytes[id].find(marks.close.back()) == std::string::npos) continue;
    for (std::size_t known = 0; known < marks.close.size(); ++known) {
      if (straddles(marks.close, known, bytes[id])) marks.straddling[known].push_back(static_cast<std::int32_t>(id));
    }
  }
  return marks;
}

}  // namespace

void StructuredOutput::prepare() {
  std::call_once(prepared_, [this] {
    GrammarVocabulary vocabulary;
    vocabulary.token_bytes.resize(static_cast<std::size_t>(vocabulary_size_));
    const std::int32_t known = std::min(vocabulary_size_, tokenizer_->size());
    for (std::int32_t id = 0; id < known; ++id) {
      if (!tokenizer_->is_special(id))
        vocabulary.token_bytes[static_cast<std::size_t>(id)] = tokenizer_->token_bytes(id);
    }
    marks_ = find_marks(*tokenizer_, format_, vocabulary.token_bytes);
    for (const std::int32_t id : marks_.mark_tokens) {
      if (id < vocabulary_size_) vocabulary.token_bytes[static_cast<std::size_t>(id)].clear();
    }
    compiler_ = GrammarCompiler::create(std::move(vocabulary));
  });
}

std::shared_ptr<const CompiledGrammar> StructuredOutput::compile(const GrammarSource& source) {
  // A source that is refused costs nothing more: its text is made before the vocabulary is prepared.
  grammar_text(source);
  prepare();
  return compiler_->compile(source);
}

const ThoughtMarks& StructuredOutput::marks() {
  prepare();
  return marks_;
}

}  // namespace tensorfold
