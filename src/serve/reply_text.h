// From reply tokens to what a client reads: decoded text, cut before the first stop string, split into reasoning and
// content. Text that could still become a stop string or a think marker is held back, so that a stream never shows what
// the whole reply would not.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace tensorfold {

/// Where stop strings are looked for in text that arrives in pieces. The earliest match wins, ties by list order.
class StopFilter {
 public:
  explicit StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) {}
  /// Text that is certain not to be part of a match; empty from the match on.
  std::string push(const std::string& text);
  std::string finish();
  const std::optional<std::string>& matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  std::optional<std::string> matched_;
};

/// Splits reasoning from content at the think markers.
class ReasoningSplitter {
 public:
  /// `inside`: the prompt left a block open. A block the model opens itself counts only at the start of its reply.
  ReasoningSplitter(std::string open_marker, std::string close_marker, bool inside);
  void push(const std::string& text, std::string& reasoning, std::string& content);
  void finish(std::string& reasoning, std::string& content);
  /// The block has been closed, or there was none.
  bool closed() const { return state_ == State::kAfterClose || state_ == State::kContent; }
  bool met_close_marker() const { return met_close_marker_; }

 private:
  enum class State { kStart, kInside, kAfterClose, kContent };
  void step(bool at_end, std::string& reasoning, std::string& content);
  bool take_start(bool at_end);
  bool take_inside(bool at_end, std::string& reasoning);

  std::string open_marker_;
  std::string close_marker_;
  State state_;
  bool began_ = false;  // reasoning text has been seen
  bool met_close_marker_ = false;
  std::string held_;
};

class ReplyText {
 public:
  ReplyText(std::shared_ptr<const Tokenizer> tokenizer, std::vector<std::string> stops, ReasoningSplitter splitter);
  void push(std::int32_t token, std::string& reasoning, std::string& content);
  void finish(std::string& reasoning, std::string& content);
  const std::optional<std::string>& stop_sequence() const { return filter_.matched(); }
  const ReasoningSplitter& splitter() const { return splitter_; }

 private:
  StreamDecoder decoder_;
  StopFilter filter_;
  ReasoningSplitter splitter_;
};

}  // namespace tensorfold
