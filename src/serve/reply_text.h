// From reply tokens to what a client reads: decoded, cut before the first stop string, split into reasoning, content
// and calls. The pieces are text/'s; this is their order, in one place for every wire format. It also says which tokens
// stand behind the content, so that log-probabilities go out with the text they belong to.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/reasoning.h"
#include "text/stop_strings.h"
#include "text/tokenizer.h"
#include "text/tool_calls.h"

namespace tensorfold {

/// What a token came to. Shown: at least one byte of its text is content. A token without text of its own (part of a
/// character, a special token) shares the fate of the next one that has text; at the end of a reply it is shown where
/// content could have followed: no stop string matched and the reasoning was over.
enum class TokenFate : std::uint8_t { kShown, kHidden };

struct ReplyTextPiece {
  std::string reasoning;
  std::string content;
  std::vector<ToolCallPiece> calls;
  std::string withheld;          // content of a whole reply only (AnswerPieces::withheld)
  std::vector<TokenFate> fates;  // of the tokens that were decided now, in the order of tokens, each token once
};

class ReplyText {
 public:
  /// `starts_inside`: the prompt left a reasoning block open.
  ReplyText(std::shared_ptr<const Tokenizer> tokenizer, std::vector<std::string> stops, ReasoningFormat format,
            bool starts_inside);
  /// Before the first token: looks for calls of these tools.
  void read_calls(std::shared_ptr<const ToolOffer> tools, bool one_call);
  ReplyTextPiece push(std::int32_t token);
  /// A token that adds no text: the end token.
  void pass_over() { ++silent_tokens_; }
  /// `ended_by_model`: by its end token, and not by a limit.
  ReplyTextPiece finish(bool ended_by_model);
  std::optional<std::string> stop_sequence() const;
  /// The calls of the reply that are whole.
  const std::vector<ToolCall>& calls() const;
  bool inside_reasoning() const { return splitter_.inside(); }

 private:
  /// Tokens whose text ends at `end`, the last of them having all of it.
  struct Group {
    std::size_t end = 0;
    std::size_t token_count = 0;
  };

  void note_text(std::size_t bytes, std::size_t tokens);
  void add(ReplyPieces pieces, ReplyTextPiece& out);
  void add_reasoning(std::string text, ReplyTextPiece& out);
  void add_answer(const ReplyPieces& pieces, ReplyTextPiece& out);
  void show(const AnswerPieces& pieces, ReplyTextPiece& out);
  void finish_calls(bool ended_by_model, ReplyTextPiece& out);
  std::size_t decided_bytes() const;
  void decide(bool everything, ReplyTextPiece& out);

  StreamDecoder decoder_;
  StopStringMatcher stops_;
  ReasoningSplitter splitter_;
  std::size_t decoded_bytes_ = 0;
  std::size_t silent_tokens_ = 0;  // since the last token that had text
  std::deque<Group> groups_;       // not yet decided
  std::size_t group_begin_ = 0;    // where the text of the first of them begins
  std::deque<TextRange> content_ranges_;

  /// A piece of the answer, by where it stands in the answer and in all the decoded text.
  struct AnswerSpan {
    std::size_t answer_begin = 0;
    TextRange text;
  };

  std::shared_ptr<const ToolOffer> tools_;  // null: nothing is looked for
  std::unique_ptr<ToolCallSplitter> call_splitter_;
  bool one_call_ = false;
  std::deque<AnswerSpan> answer_spans_;  // of what the call splitter hasn't decided
  std::size_t answer_bytes_ = 0;
  std::string held_reasoning_;  // from what may be a call in a block that is never closed
};

/// How the model behind a template marks its reasoning.
ReasoningFormat reasoning_format(const std::string& template_source);

}  // namespace tensorfold
