// Splits a reply's text into reasoning and answer while it streams. The marks themselves never appear in either part,
// and the split doesn't depend on how the text is cut into pieces.
#pragma once

#include <cstddef>
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

/// Bytes [begin, end) of all the text that was pushed.
struct TextRange {
  std::size_t begin = 0;
  std::size_t end = 0;
};

struct ReplyPieces {
  std::string reasoning;
  std::string content;
  std::vector<TextRange> content_ranges;  // where content's bytes stood, ascending
};

class ReasoningSplitter {
 public:
  /// `starts_inside`: the prompt already opened the block.
  ReasoningSplitter(ReasoningFormat format, bool starts_inside);

  ReplyPieces push(std::string_view text);
  ReplyPieces finish();
  /// The reply is still in its reasoning.
  bool inside() const { return inside_; }
  /// Bytes of the pushed text of which it is decided whether they are content.
  std::size_t decided_bytes() const { return decided_bytes_; }

 private:
  void take_marks(ReplyPieces& out, bool at_end);
  /// `begin`: where `text` stands in held_.
  void emit(ReplyPieces& out, std::string_view text, std::size_t begin);
  bool apply_mark(std::size_t mark);

  ReasoningFormat format_;
  bool inside_;
  bool skip_newlines_ = false;  // those that framed a mark
  bool reasoning_ended_ = false;
  std::string held_;
  std::size_t decided_bytes_ = 0;  // all that was pushed before held_
  std::string pending_space_;      // whitespace at the reasoning's end, dropped when the block closes
};

}  // namespace tensorfold
