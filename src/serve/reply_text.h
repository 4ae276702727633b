// From reply tokens to what a client reads: decoded, cut before the first stop string, split into reasoning and
// content. The pieces are text/'s; this is their order, in one place for every wire format.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/reasoning.h"
#include "text/stop_strings.h"
#include "text/tokenizer.h"

namespace tensorfold {

class ReplyText {
 public:
  /// `starts_inside`: the prompt left a reasoning block open.
  ReplyText(std::shared_ptr<const Tokenizer> tokenizer, std::vector<std::string> stops, ReasoningFormat format,
            bool starts_inside);
  ReplyPieces push(std::int32_t token);
  ReplyPieces finish();
  std::optional<std::string> stop_sequence() const;
  bool inside_reasoning() const { return splitter_.inside(); }

 private:
  StreamDecoder decoder_;
  StopStringMatcher stops_;
  ReasoningSplitter splitter_;
};

/// How the model behind a template marks its reasoning.
ReasoningFormat reasoning_format(const std::string& template_source);

}  // namespace tensorfold
