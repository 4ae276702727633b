// Finds the calls in a reply's answer while it streams, in every form that a model may write them (api.md of the
// specification, 4.6): marked blocks of several spellings, and an answer that is nothing but JSON naming an offered
// tool. What is no call stays text; nothing of a mark ever reaches the text of a reply that calls. The outcome doesn't
// depend on how the answer is cut into pieces.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/reasoning.h"
#include "text/tool_call_bare.h"
#include "text/tool_call_reader.h"
#include "text/tool_offer.h"

namespace tensorfold {

struct ToolCall {
  std::string name;
  std::string arguments;  // JSON text of an object
};

/// What is new of one call. The first piece of a call has its name.
struct ToolCallPiece {
  std::size_t call = 0;  // which, in the order of their beginnings
  std::string name;
  std::string arguments;
};

struct AnswerPieces {
  std::string content;
  std::vector<TextRange> content_ranges;  // where content's bytes stood in the pushed text, ascending
  std::vector<ToolCallPiece> calls;
  /// Text of a block that turned out not to be a call after its beginning had gone out as one. A stream can't take
  /// that back; a reply that is told as a whole has it as content.
  std::string withheld;
};

class ToolCallSplitter {
 public:
  /// `one_call`: only the first call that is whole counts, and it goes out whole.
  ToolCallSplitter(std::shared_ptr<const ToolOffer> offer, bool one_call);
  ~ToolCallSplitter();
  ToolCallSplitter(const ToolCallSplitter&) = delete;
  ToolCallSplitter& operator=(const ToolCallSplitter&) = delete;

  AnswerPieces push(std::string_view text);
  /// `complete`: the model ended its reply itself, so that missing closing marks may be supplied.
  AnswerPieces finish(bool complete);
  /// Calls that are whole.
  const std::vector<ToolCall>& calls() const { return calls_; }
  /// Bytes of the pushed text of which it is decided whether they are content.
  std::size_t decided_bytes() const { return pending_begin_; }

 private:
  class Recorder;
  enum class Mode { kStart, kText, kBlock, kBare };

  void run(BlockExtent extent);
  bool run_start(BlockExtent extent);
  bool run_text(BlockExtent extent);
  bool run_block(BlockExtent extent);
  bool run_bare(BlockExtent extent);
  void emit(std::size_t bytes);
  void drop(std::size_t bytes);

  std::shared_ptr<const ToolOffer> offer_;
  std::unique_ptr<Recorder> recorder_;
  std::unique_ptr<ToolCallReader> reader_;
  std::vector<ToolCall> calls_;
  BareCallScanner bare_;
  AnswerPieces out_;
  Mode mode_ = Mode::kStart;
  std::string pending_;            // not yet decided; in kBlock: blanks, the opening mark, the block
  std::size_t pending_begin_ = 0;  // of all the pushed text
  std::size_t searched_ = 0;       // kText: no mark begins in pending_ before
  std::size_t block_ = 0;          // kBlock: where the block begins behind it
  std::size_t calls_before_ = 0;   // kBlock: calls that were whole before it
  int broken_blocks_ = 0;          // marks that turned out to be text: after kBrokenBlocksMax of them every mark is
};

/// Where the first mark that may open a block begins in `text`, even if the text ends inside it; npos when none does.
std::size_t find_call_opener(std::string_view text);

}  // namespace tensorfold
