// See reply_text.h.
#include "serve/reply_text.h"

#include <algorithm>
#include <string_view>

namespace tensorfold {
namespace {

constexpr std::string_view kBlank = " \t\r\n";

/// Length of the longest end of `text` that is a proper beginning of `marker`.
std::size_t possible_beginning(std::string_view text, std::string_view marker) {
  if (marker.empty()) return 0;
  for (std::size_t length = std::min(text.size(), marker.size() - 1); length > 0; --length) {
    if (text.substr(text.size() - length) == marker.substr(0, length)) return length;
  }
  return 0;
}

}  // namespace

std::string StopFilter::push(const std::string& text) {
  if (matched_) return {};
  held_ += text;
  std::size_t earliest = std::string::npos;
  for (const std::string& stop : stops_) {
    const std::size_t at = held_.find(stop);
    if (at < earliest) {
      earliest = at;
      matched_ = stop;
    }
  }
  if (matched_) {
    std::string certain = held_.substr(0, earliest);
    held_.clear();
    return certain;
  }
  std::size_t keep = 0;
  for (const std::string& stop : stops_) keep = std::max(keep, possible_beginning(held_, stop));
  std::string certain = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return certain;
}

std::string StopFilter::finish() {
  std::string rest;
  if (!matched_) rest.swap(held_);
  return rest;
}

ReasoningSplitter::ReasoningSplitter(std::string open_marker, std::string close_marker, bool inside)
    : open_marker_(std::move(open_marker)),
      close_marker_(std::move(close_marker)),
      state_(close_marker_.empty() ? State::kContent
             : inside              ? State::kInside
                                   : State::kStart) {}

void ReasoningSplitter::push(const std::string& text, std::string& reasoning, std::string& content) {
  held_ += text;
  step(false, reasoning, content);
}

void ReasoningSplitter::finish(std::string& reasoning, std::string& content) {
  step(true, reasoning, content);
}

/// A reply that starts with the open marker opens a block. False: more text is needed to tell.
bool ReasoningSplitter::take_start(bool at_end) {
  const std::size_t first = std::min(held_.find_first_not_of(kBlank), held_.size());
  const std::string_view rest = std::string_view(held_).substr(first);
  if (rest.substr(0, open_marker_.size()) == open_marker_) {
    held_.erase(0, first + open_marker_.size());
    state_ = State::kInside;
    return true;
  }
  const bool could_open =
      rest.size() < open_marker_.size() && std::string_view(open_marker_).substr(0, rest.size()) == rest;
  if (could_open && !at_end) return false;
  state_ = State::kContent;
  return true;
}

/// True when the close marker was met.
bool ReasoningSplitter::take_inside(bool at_end, std::string& reasoning) {
  if (!began_) {
    // Blanks that frame the block, and an opening marker that the model repeats inside an open one, are stripped.
    held_.erase(0, std::min(held_.find_first_not_of(kBlank), held_.size()));
    if (held_.compare(0, open_marker_.size(), open_marker_) == 0) {
      held_.erase(0, open_marker_.size());
      held_.erase(0, std::min(held_.find_first_not_of(kBlank), held_.size()));
    } else if (!at_end && held_.size() < open_marker_.size() && open_marker_.compare(0, held_.size(), held_) == 0) {
      return false;
    }
    if (held_.empty()) return false;
    began_ = true;
  }
  const std::size_t close = held_.find(close_marker_);
  const std::size_t end = close != std::string::npos ? close
                          : at_end                   ? held_.size()
                                                     : held_.size() - possible_beginning(held_, close_marker_);
  // Blanks before the close marker are framing too: they wait until more reasoning follows.
  const std::size_t last = std::string_view(held_).substr(0, end).find_last_not_of(kBlank);
  const std::size_t taken = last == std::string_view::npos ? 0 : last + 1;
  reasoning.append(held_, 0, taken);
  if (close == std::string::npos) {
    held_.erase(0, taken);
    return false;
  }
  held_.erase(0, close + close_marker_.size());
  state_ = State::kAfterClose;
  met_close_marker_ = true;
  return true;
}

void ReasoningSplitter::step(bool at_end, std::string& reasoning, std::string& content) {
  if (state_ == State::kStart && !take_start(at_end)) return;
  if (state_ == State::kInside && !take_inside(at_end, reasoning)) return;
  if (state_ == State::kAfterClose) {
    held_.erase(0, std::min(held_.find_first_not_of(kBlank), held_.size()));
    if (held_.empty()) return;
    state_ = State::kContent;
  }
  content += held_;
  held_.clear();
}

ReplyText::ReplyText(std::shared_ptr<const Tokenizer> tokenizer, std::vector<std::string> stops,
                     ReasoningSplitter splitter)
    : decoder_(std::move(tokenizer), true), filter_(std::move(stops)), splitter_(std::move(splitter)) {}

void ReplyText::push(std::int32_t token, std::string& reasoning, std::string& content) {
  splitter_.push(filter_.push(decoder_.push(token)), reasoning, content);
}

void ReplyText::finish(std::string& reasoning, std::string& content) {
  splitter_.push(filter_.push(decoder_.finish()), reasoning, content);
  splitter_.push(filter_.finish(), reasoning, content);
  splitter_.finish(reasoning, content);
}

}  // namespace tensorfold
