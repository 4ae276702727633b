// See tool_calls.h.
#include "text/tool_calls.h"

#include <algorithm>

namespace tensorfold {
namespace {

constexpr std::size_t kTagPrefixBytesMax = 32;
constexpr int kBrokenBlocksMax = 16;
constexpr std::string_view kTag = "tool_call>";
constexpr std::string_view kGemmaOpen = "<|tool_call>";
constexpr std::string_view kGemmaClose = "<tool_call|>";

struct Opener {
  MarkMatch match = MarkMatch::kNo;
  std::size_t size = 0;
  std::string close;
  bool gemma = false;
};

bool is_prefix_byte(char byte) {
  return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9') || byte == '_' ||
         byte == '-' || byte == '.';
}

/// As match_mark, letters in any case.
MarkMatch match_tag(std::string_view text) {
  const std::size_t size = std::min(text.size(), kTag.size());
  for (std::size_t i = 0; i < size; ++i) {
    const char byte = text[i] >= 'A' && text[i] <= 'Z' ? static_cast<char>(text[i] - 'A' + 'a') : text[i];
    if (byte != kTag[i]) return MarkMatch::kNo;
  }
  return size == kTag.size() ? MarkMatch::kWhole : MarkMatch::kPart;
}

Opener opened_by(std::string_view text, std::size_t inner) {
  Opener opener;
  opener.match = match_tag(text.substr(inner));
  opener.size = inner + kTag.size();
  if (opener.match == MarkMatch::kWhole) opener.close = "</" + std::string(text.substr(1, opener.size - 1));
  return opener;
}

/// The mark that `text`, which begins with '<', may open a block with.
Opener match_opener(std::string_view text) {
  Opener gemma;
  gemma.match = match_mark(text, kGemmaOpen);
  if (gemma.match != MarkMatch::kNo && text.size() > 1) {
    gemma.size = kGemmaOpen.size();
    gemma.close = kGemmaClose;
    gemma.gemma = true;
    return gemma;
  }
  const Opener plain = opened_by(text, 1);
  if (plain.match != MarkMatch::kNo) return plain;
  std::size_t prefix = 1;
  while (prefix < text.size() && prefix <= kTagPrefixBytesMax && is_prefix_byte(text[prefix])) ++prefix;
  if (prefix == text.size() && prefix <= kTagPrefixBytesMax) return {MarkMatch::kPart, 0, "", false};
  if (prefix == 1 || prefix >= text.size() || text[prefix] != ':') return {};
  return opened_by(text, prefix + 1);
}

/// The first '<' at or after `from` that opens a block, wholly or as far as there is text.
std::size_t find_opener(std::string_view text, std::size_t from, Opener& opener) {
  for (std::size_t at = text.find('<', from); at != std::string_view::npos; at = text.find('<', at + 1)) {
    opener = match_opener(text.substr(at));
    if (opener.match != MarkMatch::kNo) return at;
  }
  return std::string_view::npos;
}

std::size_t without_blanks_behind(std::string_view text) {
  return text.find_last_not_of(" \t\r\n") + 1;
}

}  // namespace

/// Turns what a reader finds into pieces, and keeps the calls that are whole.
class ToolCallSplitter::Recorder final : public ToolCallSink {
 public:
  Recorder(ToolCallSplitter& splitter, bool one_call) : splitter_(splitter), one_call_(one_call) {}

  void begin(const std::string& name) override {
    call_ = {name, ""};
    open_ = true;
    if (!one_call_) splitter_.out_.calls.push_back({count_++, name, ""});
  }
  void add(std::string_view arguments) override {
    call_.arguments += arguments;
    if (!one_call_ && !arguments.empty()) pieces_back().arguments += arguments;
  }
  void end() override {
    open_ = false;
    if (one_call_) {
      if (!splitter_.calls_.empty()) return;
      splitter_.out_.calls.push_back({count_++, call_.name, call_.arguments});
    }
    splitter_.calls_.push_back(std::move(call_));
  }
  /// A call has begun and its beginning has gone out.
  bool has_sent_open() const { return open_ && !one_call_; }
  void give_up() { open_ = false; }

 private:
  /// The piece that the open call's text goes to: at most one for a push.
  ToolCallPiece& pieces_back() {
    std::vector<ToolCallPiece>& pieces = splitter_.out_.calls;
    if (pieces.empty() || pieces.back().call != count_ - 1) pieces.push_back({count_ - 1, "", ""});
    return pieces.back();
  }

  ToolCallSplitter& splitter_;
  const bool one_call_;
  ToolCall call_;
  std::size_t count_ = 0;  // calls that have gone out
  bool open_ = false;
};

ToolCallSplitter::ToolCallSplitter(std::shared_ptr<const ToolOffer> offer, bool one_call)
    : offer_(std::move(offer)), recorder_(std::make_unique<Recorder>(*this, one_call)) {}

ToolCallSplitter::~ToolCallSplitter() = default;

void ToolCallSplitter::emit(std::size_t bytes) {
  if (bytes == 0) return;
  out_.content.append(pending_, 0, bytes);
  std::vector<TextRange>& ranges = out_.content_ranges;
  if (!ranges.empty() && ranges.back().end == pending_begin_) {
    ranges.back().end += bytes;
  } else {
    ranges.push_back({pending_begin_, pending_begin_ + bytes});
  }
  drop(bytes);
}

void ToolCallSplitter::drop(std::size_t bytes) {
  pending_.erase(0, bytes);
  pending_begin_ += bytes;
  searched_ -= std::min(searched_, bytes);
}

/// Until something else than blanks has come: an answer that is all JSON is told by how it begins.
bool ToolCallSplitter::run_start(BlockExtent extent) {
  const std::size_t first = skip_blanks(pending_, 0);
  if (first == pending_.size() && extent == BlockExtent::kGrowing) return false;
  mode_ = BareCallScanner::may_begin(pending_) ? Mode::kBare : Mode::kText;
  return true;
}

bool ToolCallSplitter::run_bare(BlockExtent extent) {
  BareCallScanner::Verdict verdict = bare_.scan(pending_, extent);
  if (verdict == BareCallScanner::Verdict::kOpen && extent == BlockExtent::kGrowing) return false;
  std::vector<NamedArguments> calls;
  if (verdict == BareCallScanner::Verdict::kOpen) verdict = bare_.read(pending_, extent, *offer_, calls);
  mode_ = Mode::kText;
  if (verdict == BareCallScanner::Verdict::kText) return true;
  for (const NamedArguments& call : calls) {
    recorder_->begin(call.name);
    recorder_->add(call.arguments);
    recorder_->end();
  }
  drop(pending_.size());
  return false;
}

bool ToolCallSplitter::run_text(BlockExtent extent) {
  Opener opener;
  // Each broken block is read again as text: a bound keeps a reply full of marks from costing its length squared.
  const bool looks = broken_blocks_ < kBrokenBlocksMax;
  const std::size_t at = looks ? find_opener(pending_, searched_, opener) : std::string::npos;
  if (at == std::string::npos || (opener.match == MarkMatch::kPart && extent != BlockExtent::kGrowing)) {
    // Blanks are shown once more text follows them: those around calls are no part of the answer.
    const bool at_end = extent != BlockExtent::kGrowing;
    const std::size_t shown = at_end && calls_.empty() ? pending_.size() : without_blanks_behind(pending_);
    searched_ = pending_.size();
    emit(shown);
    if (at_end) drop(pending_.size());
    return false;
  }
  emit(without_blanks_behind(std::string_view(pending_).substr(0, at)));
  searched_ = skip_blanks(pending_, 0);
  if (opener.match == MarkMatch::kPart) return false;
  block_ = searched_ + opener.size;
  calls_before_ = calls_.size();
  reader_ = opener.gemma ? make_gemma_call_reader(*offer_, opener.close)
                         : make_tagged_call_reader(*offer_, std::move(opener.close));
  mode_ = Mode::kBlock;
  return true;
}

bool ToolCallSplitter::run_block(BlockExtent extent) {
  const ToolCallReader::State state = reader_->read(std::string_view(pending_).substr(block_), extent, *recorder_);
  if (state == ToolCallReader::State::kReading) return false;
  mode_ = Mode::kText;
  const std::size_t end = block_ + reader_->used();
  if (state == ToolCallReader::State::kDone) {
    drop(end);
  } else if (recorder_->has_sent_open()) {
    recorder_->give_up();
    out_.withheld.append(pending_, 0, end);
    drop(end);
  } else if (calls_.size() > calls_before_) {
    drop(end);  // calls of the block that were whole stand; what follows them is text
  } else {
    recorder_->give_up();
    searched_ = block_;  // the mark is text; what follows it may hold a block of its own
    ++broken_blocks_;
  }
  reader_.reset();
  return true;
}

void ToolCallSplitter::run(BlockExtent extent) {
  bool again = true;
  while (again) {
    switch (mode_) {
      case Mode::kStart:
        again = run_start(extent);
        break;
      case Mode::kText:
        again = run_text(extent);
        break;
      case Mode::kBlock:
        again = run_block(extent);
        break;
      case Mode::kBare:
        again = run_bare(extent);
        break;
    }
  }
}

AnswerPieces ToolCallSplitter::push(std::string_view text) {
  pending_ += text;
  out_ = {};
  run(BlockExtent::kGrowing);
  return std::move(out_);
}

AnswerPieces ToolCallSplitter::finish(bool complete) {
  out_ = {};
  run(complete ? BlockExtent::kComplete : BlockExtent::kCut);
  return std::move(out_);
}

std::size_t find_call_opener(std::string_view text) {
  Opener opener;
  return find_opener(text, 0, opener);
}

}  // namespace tensorfold
