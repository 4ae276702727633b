// See reply_text.h.
#include "serve/reply_text.h"

namespace tensorfold {

ReplyText::ReplyText(std::shared_ptr<const Tokenizer> tokenizer, std::vector<std::string> stops, ReasoningFormat format,
                     bool starts_inside)
    : decoder_(std::move(tokenizer), true), stops_(std::move(stops)), splitter_(format, starts_inside) {}

ReplyPieces ReplyText::push(std::int32_t token) {
  return splitter_.push(stops_.push(decoder_.push(token)));
}

ReplyPieces ReplyText::finish() {
  ReplyPieces all = splitter_.push(stops_.push(decoder_.finish()));
  const auto add = [&all](ReplyPieces more) {
    all.reasoning += more.reasoning;
    all.content += more.content;
  };
  add(splitter_.push(stops_.finish()));
  add(splitter_.finish());
  return all;
}

std::optional<std::string> ReplyText::stop_sequence() const {
  return stops_.matched() ? std::optional<std::string>(stops_.stop()) : std::nullopt;
}

ReasoningFormat reasoning_format(const std::string& template_source) {
  const auto names = [&template_source](const char* mark) { return template_source.find(mark) != std::string::npos; };
  if (names("<|channel|>")) return ReasoningFormat::kHarmony;
  if (names("<|channel>")) return ReasoningFormat::kChannel;
  if (names("</think>") || names("<think>") || names("enable_thinking")) return ReasoningFormat::kThink;
  return ReasoningFormat::kNone;
}

}  // namespace tensorfold
