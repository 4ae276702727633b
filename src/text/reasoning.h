// Splits a reply's text into reasoning and answer while it streams. The marks themselves never appear in either part,
// and the split doesn't depend on how the text is cut into pieces.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tensorfold {

enum class ReasoningFormat {
  kNone,     // everything is content
  kThink,    // <think> ... </think>
  kChannel,  // <|channel>thought ... <channel|>
  kHarmony,  // <|channel|>analysis<|message|> ..., <|channel|>final<|message|> ...
};

struct ReplyPieces {
  std::string reasoning;
  std::string content;
};

class ReasoningSplitter {
 public:
  /// `starts_inside`: the prompt already opened the block.
  ReasoningSplitter(ReasoningFormat format, bool starts_inside);

  ReplyPieces push(std::string_view text);
  ReplyPieces finish();
  /// The reply is still in its reasoning.
  bool inside() const { return inside_; }

 private:
  void take_marks(ReplyPieces& out, bool at_end);
  void emit(ReplyPieces& out, std::string_view text);
  bool apply_mark(std::size_t mark);

  ReasoningFormat format_;
  bool inside_;
  bool skip_newlines_ = false;  // those that framed a mark
  bool reasoning_ended_ = false;
  std::string held_;
  std::string pending_space_;  // whitespace at the reasoning's end, dropped when the block closes
};

}  // namespace tensorfold
