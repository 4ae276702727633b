// See reply_text.h.
#include "serve/reply_text.h"

namespace tensorfold {

ReplyText::ReplyText(std::shared_ptr<const Tokenizer> tokenizer, std::vector<std::string> stops, ReasoningFormat format,
                     bool starts_inside)
    : decoder_(std::move(tokenizer), true), stops_(std::move(stops)), splitter_(format, starts_inside) {}

void ReplyText::note_text(std::size_t bytes, std::size_t tokens) {
  silent_tokens_ += tokens;
  decoded_bytes_ += bytes;
  if (bytes == 0 || silent_tokens_ == 0) return;
  groups_.push_back({decoded_bytes_, silent_tokens_});
  silent_tokens_ = 0;
}

void ReplyText::add(ReplyPieces pieces, ReplyTextPiece& out) {
  out.reasoning += pieces.reasoning;
  out.content += pieces.content;
  content_ranges_.insert(content_ranges_.end(), pieces.content_ranges.begin(), pieces.content_ranges.end());
}

// What passed the stop strings is a prefix of the decoded text, so positions are the same on both sides of them.
void ReplyText::decide(bool everything, ReplyTextPiece& out) {
  while (!groups_.empty() && (everything || groups_.front().end <= splitter_.decided_bytes())) {
    const Group& group = groups_.front();
    while (!content_ranges_.empty() && content_ranges_.front().end <= group_begin_) content_ranges_.pop_front();
    const bool shown = !content_ranges_.empty() && content_ranges_.front().begin < group.end;
    out.fates.insert(out.fates.end(), group.token_count, shown ? TokenFate::kShown : TokenFate::kHidden);
    group_begin_ = group.end;
    groups_.pop_front();
  }
}

ReplyTextPiece ReplyText::push(std::int32_t token) {
  const std::string text = decoder_.push(token);
  note_text(text.size(), 1);
  ReplyTextPiece out;
  add(splitter_.push(stops_.push(text)), out);
  decide(false, out);
  return out;
}

ReplyTextPiece ReplyText::finish() {
  const std::string text = decoder_.finish();
  note_text(text.size(), 0);
  ReplyTextPiece out;
  add(splitter_.push(stops_.push(text)), out);
  add(splitter_.push(stops_.finish()), out);
  add(splitter_.finish(), out);
  decide(true, out);
  const bool shown = !stops_.matched() && !splitter_.inside();
  out.fates.insert(out.fates.end(), silent_tokens_, shown ? TokenFate::kShown : TokenFate::kHidden);
  silent_tokens_ = 0;
  return out;
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
