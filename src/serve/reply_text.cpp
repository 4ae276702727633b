// See reply_text.h.
#include "serve/reply_text.h"

#include <algorithm>

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

void ReplyText::read_calls(std::shared_ptr<const ToolOffer> tools, bool one_call) {
  tools_ = std::move(tools);
  one_call_ = one_call;
  call_splitter_ = std::make_unique<ToolCallSplitter>(tools_, one_call_);
}

const std::vector<ToolCall>& ReplyText::calls() const {
  static const std::vector<ToolCall> none;
  return call_splitter_ == nullptr ? none : call_splitter_->calls();
}

void ReplyText::add(ReplyPieces pieces, ReplyTextPiece& out) {
  if (call_splitter_ == nullptr) {
    out.reasoning += pieces.reasoning;
    out.content += pieces.content;
    content_ranges_.insert(content_ranges_.end(), pieces.content_ranges.begin(), pieces.content_ranges.end());
    return;
  }
  if (!pieces.reasoning.empty()) add_reasoning(std::move(pieces.reasoning), out);
  if (!splitter_.inside()) {  // the block was closed: what looked like a call was thought about
    out.reasoning += held_reasoning_;
    held_reasoning_.clear();
  }
  if (!pieces.content.empty()) add_answer(pieces, out);
}

/// A call that ends a block which is never closed counts as the answer: from its first mark on nothing is shown before
/// the block has closed or the reply has ended.
void ReplyText::add_reasoning(std::string text, ReplyTextPiece& out) {
  held_reasoning_ += text;
  const std::size_t opener = find_call_opener(held_reasoning_);
  std::size_t shown = held_reasoning_.size();
  if (opener != std::string::npos) shown = held_reasoning_.substr(0, opener).find_last_not_of(" \t\r\n") + 1;
  out.reasoning.append(held_reasoning_, 0, shown);
  held_reasoning_.erase(0, shown);
}

void ReplyText::add_answer(const ReplyPieces& pieces, ReplyTextPiece& out) {
  for (const TextRange& range : pieces.content_ranges) {
    answer_spans_.push_back({answer_bytes_, range});
    answer_bytes_ += range.end - range.begin;
  }
  show(call_splitter_->push(pieces.content), out);
}

void ReplyText::show(const AnswerPieces& pieces, ReplyTextPiece& out) {
  out.content += pieces.content;
  out.withheld += pieces.withheld;
  out.calls.insert(out.calls.end(), pieces.calls.begin(), pieces.calls.end());
  for (const TextRange& range : pieces.content_ranges) {
    for (const AnswerSpan& span : answer_spans_) {
      const std::size_t begin = std::max(range.begin, span.answer_begin);
      const std::size_t end = std::min(range.end, span.answer_begin + span.text.end - span.text.begin);
      if (begin >= end) continue;
      const std::size_t shift = span.text.begin - span.answer_begin;
      content_ranges_.push_back({begin + shift, end + shift});
    }
  }
  const auto decided = [this](const AnswerSpan& span) {
    return span.answer_begin + span.text.end - span.text.begin <= call_splitter_->decided_bytes();
  };
  while (!answer_spans_.empty() && decided(answer_spans_.front())) answer_spans_.pop_front();
}

/// Of the decoded text: bytes of which it is decided whether they are content.
std::size_t ReplyText::decided_bytes() const {
  if (answer_spans_.empty()) return splitter_.decided_bytes();
  const AnswerSpan& span = answer_spans_.front();
  const std::size_t decided = std::max(call_splitter_->decided_bytes(), span.answer_begin);
  return span.text.begin + decided - span.answer_begin;
}

void ReplyText::finish_calls(bool ended_by_model, ReplyTextPiece& out) {
  if (call_splitter_ == nullptr) return;
  if (!held_reasoning_.empty()) {
    auto last = std::make_unique<ToolCallSplitter>(tools_, one_call_);
    const AnswerPieces pieces = last->push(held_reasoning_);
    const AnswerPieces end = last->finish(ended_by_model);
    if (!last->calls().empty() && (pieces.content + pieces.withheld + end.content + end.withheld).empty()) {
      for (const AnswerPieces* found : {&pieces, &end}) {
        out.calls.insert(out.calls.end(), found->calls.begin(), found->calls.end());
      }
      call_splitter_ = std::move(last);
      answer_spans_.clear();
      return;
    }
    out.reasoning += held_reasoning_;
    held_reasoning_.clear();
  }
  show(call_splitter_->finish(ended_by_model), out);
}

// What passed the stop strings is a prefix of the decoded text, so positions are the same on both sides of them.
void ReplyText::decide(bool everything, ReplyTextPiece& out) {
  while (!groups_.empty() && (everything || groups_.front().end <= decided_bytes())) {
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

ReplyTextPiece ReplyText::finish(bool ended_by_model) {
  const std::string text = decoder_.finish();
  note_text(text.size(), 0);
  ReplyTextPiece out;
  add(splitter_.push(stops_.push(text)), out);
  add(splitter_.push(stops_.finish()), out);
  add(splitter_.finish(), out);
  finish_calls(ended_by_model && !stops_.matched(), out);
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
