// The XML form of calls (Qwen3-Coder, Qwen3.5, Nemotron). Values of text parameters are passed on as they are written;
// a closing mark inside a value is told from the real one by what follows it, so that code about such markup survives.
#include <algorithm>

#include "text/tool_call_reader.h"
#include "text/tool_value.h"

namespace tensorfold {
namespace {

constexpr std::string_view kFunction = "<function=";
constexpr std::string_view kFunctionEnd = "</function>";
constexpr std::string_view kParameter = "<parameter=";
constexpr std::string_view kParameterEnd = "</parameter>";

class XmlCallReader final : public ToolCallReader {
 public:
  XmlCallReader(const ToolOffer& offer, std::string close) : offer_(offer), close_(std::move(close)) {}

  State read(std::string_view text, BlockExtent extent, ToolCallSink& sink) override {
    text_ = text;
    extent_ = extent;
    sink_ = &sink;
    Step step = Step::kAgain;
    while (step == Step::kAgain) step = advance();
    if (step == Step::kDone) return State::kDone;
    if (step == Step::kBroken) return State::kBroken;
    return extent_ == BlockExtent::kGrowing ? State::kReading : at_end();
  }
  std::size_t used() const override { return position_; }

 private:
  enum class Place { kBeforeFunction, kBetweenParameters, kInValue, kAfterFunction };
  enum class Step { kAgain, kWait, kDone, kBroken };

  Step advance() {
    switch (place_) {
      case Place::kBeforeFunction:
        return open_function();
      case Place::kBetweenParameters:
        return next_parameter();
      case Place::kInValue:
        return go_on_with_value();
      case Place::kAfterFunction:
        break;
    }
    return after_function();
  }

  std::string_view rest(std::size_t position) const { return text_.substr(std::min(position, text_.size())); }

  /// The text between `mark` at `begin` and the next '>', trimmed; false while that hasn't come.
  bool read_name(std::size_t begin, std::string_view mark, std::string& name, std::size_t& end) const {
    const std::size_t close = text_.find('>', begin + mark.size());
    if (close == std::string_view::npos) return false;
    std::string_view inner = text_.substr(begin + mark.size(), close - begin - mark.size());
    const std::size_t first = inner.find_first_not_of(" \t\r\n");
    inner.remove_prefix(first == std::string_view::npos ? inner.size() : first);
    name = inner.substr(0, inner.find_last_not_of(" \t\r\n") + 1);
    end = close + 1;
    return true;
  }

  Step open_function() {
    const std::size_t begin = skip_blanks(text_, position_);
    const MarkMatch match = match_mark(rest(begin), kFunction);
    if (match == MarkMatch::kNo) return Step::kBroken;
    std::string name;
    std::size_t end = 0;
    if (match == MarkMatch::kPart || !read_name(begin, kFunction, name, end)) return Step::kWait;
    const std::optional<std::string> called = offer_.call_name(name);
    if (!called) return Step::kBroken;
    name_ = *called;
    position_ = end;
    first_parameter_ = true;
    place_ = Place::kBetweenParameters;
    sink_->begin(name_);
    sink_->add("{");
    return Step::kAgain;
  }

  Step close_function(std::size_t end) {
    sink_->add("}");
    sink_->end();
    position_ = end;
    place_ = Place::kAfterFunction;
    return Step::kAgain;
  }

  /// Stray text between parameters is passed over: the call has begun, and it can't be taken back.
  Step next_parameter() {
    while (true) {
      const std::size_t mark = text_.find('<', position_);
      if (mark == std::string_view::npos) {
        position_ = text_.size();
        return Step::kWait;
      }
      position_ = mark;
      const std::string_view here = rest(mark);
      if (match_mark(here, kFunctionEnd) == MarkMatch::kWhole) return close_function(mark + kFunctionEnd.size());
      if (match_mark(here, close_) == MarkMatch::kWhole) return close_function(mark);
      if (match_mark(here, kParameter) == MarkMatch::kWhole) return open_parameter(mark);
      for (const std::string_view known : {kFunctionEnd, kParameter, std::string_view(close_)}) {
        if (match_mark(here, known) == MarkMatch::kPart) return Step::kWait;
      }
      ++position_;
    }
  }

  Step open_parameter(std::size_t mark) {
    std::string key;
    std::size_t end = 0;
    if (!read_name(mark, kParameter, key, end)) return Step::kWait;
    type_ = offer_.value_type(name_, key);
    sink_->add(std::string(first_parameter_ ? "\"" : ",\"") + json_escaped(key) + "\":");
    if (type_ == ToolValueType::kText) sink_->add("\"");
    first_parameter_ = false;
    position_ = value_begin_ = end;
    search_ = end;
    framed_ = false;
    place_ = Place::kInValue;
    return Step::kAgain;
  }

  /// The line end that frames a value at its front.
  bool skip_front_frame() {
    if (framed_) return true;
    const std::string_view here = rest(value_begin_);
    if (here.empty() || (here == "\r" && extent_ == BlockExtent::kGrowing)) return false;
    if (here.starts_with("\r\n")) {
      value_begin_ += 2;
    } else if (here.front() == '\n') {
      value_begin_ += 1;
    }
    position_ = value_begin_;
    search_ = std::max(search_, value_begin_);
    framed_ = true;
    return true;
  }

  /// Whether the closing mark at `mark` ends the value: the next thing after it belongs to the call.
  MarkMatch closes_value(std::size_t mark) const {
    const std::size_t next = skip_blanks(text_, mark + kParameterEnd.size());
    MarkMatch best = MarkMatch::kNo;
    for (const std::string_view known : {kParameter, kFunctionEnd, std::string_view(close_)}) {
      best = std::max(best, match_mark(rest(next), known));
    }
    if (best == MarkMatch::kPart && extent_ != BlockExtent::kGrowing && next == text_.size()) return MarkMatch::kWhole;
    return best;
  }

  Step go_on_with_value() {
    if (!skip_front_frame()) return Step::kWait;
    while (true) {
      const std::size_t mark = text_.find(kParameterEnd, search_);
      if (mark == std::string_view::npos) break;
      const MarkMatch closes = closes_value(mark);
      if (closes == MarkMatch::kWhole) return close_value(mark);
      if (closes == MarkMatch::kPart) {
        pass_text(mark);
        return Step::kWait;
      }
      search_ = mark + kParameterEnd.size();  // the value's own text
    }
    // The end of what there is may be the beginning of the mark.
    std::size_t safe = text_.size();
    const std::size_t longest = std::min(kParameterEnd.size() - 1, safe - search_);
    for (std::size_t length = longest; length > 0; --length) {
      if (text_.substr(safe - length) != kParameterEnd.substr(0, length)) continue;
      safe -= length;
      break;
    }
    search_ = safe;
    pass_text(safe);
    return Step::kWait;
  }

  /// Sends a text value on up to `end`, but for a line end that may frame it.
  void pass_text(std::size_t end) {
    if (type_ != ToolValueType::kText) return;
    if (end > position_ && text_[end - 1] == '\n') --end;
    if (end > position_ && text_[end - 1] == '\r') --end;
    if (end <= position_) return;
    sink_->add(json_escaped(text_.substr(position_, end - position_)));
    position_ = end;
  }

  Step close_value(std::size_t mark) {
    std::size_t end = mark;
    if (end > value_begin_ && text_[end - 1] == '\n') --end;
    if (end < mark && end > value_begin_ && text_[end - 1] == '\r') --end;
    if (type_ == ToolValueType::kText) {
      if (end > position_) sink_->add(json_escaped(text_.substr(position_, end - position_)));
      sink_->add("\"");
    } else {
      sink_->add(compact_json(read_tool_value(text_.substr(value_begin_, end - value_begin_), type_, true)));
    }
    position_ = mark + kParameterEnd.size();
    place_ = Place::kBetweenParameters;
    return Step::kAgain;
  }

  /// Another function of the same block, or its end. Anything else: the block ended without its mark.
  Step after_function() {
    const std::size_t begin = skip_blanks(text_, position_);
    const MarkMatch closes = match_mark(rest(begin), close_), opens = match_mark(rest(begin), kFunction);
    if (closes == MarkMatch::kWhole) {
      position_ = begin + close_.size();
      return Step::kDone;
    }
    if (opens == MarkMatch::kWhole) {
      position_ = begin;
      place_ = Place::kBeforeFunction;
      return Step::kAgain;
    }
    return closes == MarkMatch::kPart || opens == MarkMatch::kPart ? Step::kWait : Step::kDone;
  }

  /// No more will come, and the block is still open.
  State at_end() {
    if (place_ == Place::kBetweenParameters && extent_ == BlockExtent::kComplete) close_function(text_.size());
    if (place_ != Place::kAfterFunction) {
      position_ = text_.size();
      return State::kBroken;  // a value is never completed
    }
    position_ = text_.size();
    return State::kDone;
  }

  const ToolOffer& offer_;
  const std::string close_;
  std::string_view text_;
  BlockExtent extent_ = BlockExtent::kGrowing;
  ToolCallSink* sink_ = nullptr;
  Place place_ = Place::kBeforeFunction;
  std::size_t position_ = 0;     // all before it is done with
  std::size_t value_begin_ = 0;  // of the value that is being read
  std::size_t search_ = 0;       // no closing mark of it begins before
  bool framed_ = false;          // its front frame is behind
  bool first_parameter_ = true;
  std::string name_;
  ToolValueType type_ = ToolValueType::kText;
};

}  // namespace

std::unique_ptr<ToolCallReader> make_xml_call_reader(const ToolOffer& offer, std::string close) {
  return std::make_unique<XmlCallReader>(offer, std::move(close));
}

}  // namespace tensorfold
