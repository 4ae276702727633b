// The forms of calls that are read once their block is whole (GLM's keys and values, Gemma 4's bare objects), and the
// reader that picks a form by how a block begins.
#include <algorithm>
#include <vector>

#include "base/limits.h"
#include "text/tool_call_reader.h"
#include "text/tool_value.h"

namespace tensorfold {
namespace {

using Json = nlohmann::ordered_json;

std::string_view trimmed(std::string_view text) {
  const std::size_t first = skip_blanks(text, 0);
  text.remove_prefix(first);
  return text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
}

/// Waits for a closing mark and reads what stands before it. A mark inside a value is passed over: the text up to it
/// doesn't read as a call.
class WholeBlockReader : public ToolCallReader {
 public:
  explicit WholeBlockReader(std::string close) : close_(std::move(close)) {}

  State read(std::string_view text, BlockExtent extent, ToolCallSink& sink) override {
    while (true) {
      const std::size_t mark = text.find(close_, search_);
      if (mark == std::string_view::npos) break;
      search_ = mark + close_.size();
      used_ = search_;
      if (take(text.substr(0, mark), sink)) return State::kDone;
      if (++closes_ == kClosesMax) return State::kBroken;  // each is read from the block's beginning
    }
    if (text.size() >= close_.size()) search_ = std::max(search_, text.size() - close_.size() + 1);
    if (extent == BlockExtent::kGrowing) return State::kReading;
    used_ = text.size();
    return extent == BlockExtent::kComplete && take(text, sink) ? State::kDone : State::kBroken;
  }
  std::size_t used() const override { return used_; }

 protected:
  virtual std::optional<NamedArguments> call_of(std::string_view block) const = 0;

 private:
  static constexpr int kClosesMax = 16;

  bool take(std::string_view block, ToolCallSink& sink) {
    const std::optional<NamedArguments> call = call_of(block);
    if (!call) return false;
    sink.begin(call->name);
    sink.add(call->arguments);
    sink.end();
    return true;
  }

  const std::string close_;
  int closes_ = 0;
  std::size_t search_ = 0;
  std::size_t used_ = 0;
};

class KeyedCallReader final : public WholeBlockReader {
 public:
  KeyedCallReader(const ToolOffer& offer, std::string close) : WholeBlockReader(std::move(close)), offer_(offer) {}

 protected:
  std::optional<NamedArguments> call_of(std::string_view block) const override {
    const std::size_t keys = block.find("<arg_key>");
    const std::optional<std::string> name = offer_.call_name(trimmed(block.substr(0, keys)));
    if (!name) return std::nullopt;
    Json arguments = Json::object();
    block.remove_prefix(std::min(keys, block.size()));
    while (!(block = trimmed(block)).empty()) {
      const std::optional<std::string_view> key = take_element(block, "<arg_key>", "</arg_key>");
      if (!key) return std::nullopt;
      const std::optional<std::string_view> value = take_element(block, "<arg_value>", "</arg_value>");
      if (!value) return std::nullopt;
      const std::string named(trimmed(*key));
      arguments[named] = read_tool_value(unframed(*value), offer_.value_type(*name, named), false);
    }
    return NamedArguments{*name, compact_json(arguments)};
  }

 private:
  static std::optional<std::string_view> take_element(std::string_view& block, std::string_view open,
                                                      std::string_view close) {
    block.remove_prefix(skip_blanks(block, 0));
    if (!block.starts_with(open)) return std::nullopt;
    const std::size_t end = block.find(close, open.size());
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view inner = block.substr(open.size(), end - open.size());
    block.remove_prefix(end + close.size());
    return inner;
  }

  static std::string_view unframed(std::string_view text) {
    if (text.starts_with("\n")) text.remove_prefix(1);
    if (text.ends_with("\n")) text.remove_suffix(1);
    return text;
  }

  const ToolOffer& offer_;
};

/// Gemma 4's objects as JSON: keys are bare, strings stand between <|"|>.
class GemmaObject {
 public:
  explicit GemmaObject(std::string_view text) : text_(text) {}

  std::optional<Json> read() {
    std::optional<Json> value = read_value(0);
    position_ = skip_blanks(text_, position_);
    return position_ == text_.size() ? value : std::nullopt;
  }

 private:
  static constexpr std::string_view kQuote = "<|\"|>";

  bool take(std::string_view mark) {
    position_ = skip_blanks(text_, position_);
    if (!text_.substr(position_).starts_with(mark)) return false;
    position_ += mark.size();
    return true;
  }

  std::optional<Json> read_value(int depth) {
    if (depth > limits::kJsonDepthMax) return std::nullopt;
    if (take(kQuote)) return read_string();
    if (take("{")) return read_members(depth);
    if (take("[")) return read_items(depth);
    const std::size_t end = std::min(text_.find_first_of(",]}", position_), text_.size());
    const std::string_view word = trimmed(text_.substr(position_, end - position_));
    position_ = end;
    std::optional<Json> value = parse_bounded_json(word);
    if (!value && !word.empty()) value = Json(std::string(word));  // a text without its quotes
    return value;
  }

  std::optional<Json> read_string() {
    const std::size_t end = text_.find(kQuote, position_);
    if (end == std::string_view::npos) return std::nullopt;
    Json value(std::string(text_.substr(position_, end - position_)));
    position_ = end + kQuote.size();
    return value;
  }

  std::optional<Json> read_members(int depth) {
    Json object = Json::object();
    if (take("}")) return object;
    do {
      position_ = skip_blanks(text_, position_);
      std::string key;
      if (take(kQuote)) {
        const std::optional<Json> quoted = read_string();
        if (!quoted || !take(":")) return std::nullopt;
        key = quoted->get<std::string>();
      } else {
        const std::size_t colon = text_.find(':', position_);
        if (colon == std::string_view::npos) return std::nullopt;
        key = trimmed(text_.substr(position_, colon - position_));
        position_ = colon + 1;
      }
      std::optional<Json> value = read_value(depth + 1);
      if (key.empty() || !value) return std::nullopt;
      object[key] = std::move(*value);
    } while (take(","));
    return take("}") ? std::optional<Json>(std::move(object)) : std::nullopt;
  }

  std::optional<Json> read_items(int depth) {
    Json array = Json::array();
    if (take("]")) return array;
    do {
      std::optional<Json> value = read_value(depth + 1);
      if (!value) return std::nullopt;
      array.push_back(std::move(*value));
    } while (take(","));
    return take("]") ? std::optional<Json>(std::move(array)) : std::nullopt;
  }

  std::string_view text_;
  std::size_t position_ = 0;
};

class GemmaCallReader final : public WholeBlockReader {
 public:
  GemmaCallReader(const ToolOffer& offer, std::string close) : WholeBlockReader(std::move(close)), offer_(offer) {}

 protected:
  std::optional<NamedArguments> call_of(std::string_view block) const override {
    block = trimmed(block);
    if (block.starts_with("call:")) {
      block.remove_prefix(5);
    } else if (block.starts_with(":")) {
      block.remove_prefix(1);
    } else {
      return std::nullopt;
    }
    const std::size_t brace = block.find('{');
    if (brace == std::string_view::npos) return std::nullopt;
    const std::optional<std::string> name = offer_.call_name(trimmed(block.substr(0, brace)));
    const std::optional<Json> arguments = GemmaObject(block.substr(brace)).read();
    if (!name || !arguments || !arguments->is_object()) return std::nullopt;
    return NamedArguments{*name, compact_json(*arguments)};
  }

 private:
  const ToolOffer& offer_;
};

class TaggedCallReader final : public ToolCallReader {
 public:
  TaggedCallReader(const ToolOffer& offer, std::string close) : offer_(offer), close_(std::move(close)) {}

  State read(std::string_view text, BlockExtent extent, ToolCallSink& sink) override {
    if (inner_ == nullptr) {
      const std::size_t first = skip_blanks(text, 0);
      if (first == text.size()) return extent == BlockExtent::kGrowing ? State::kReading : State::kBroken;
      const char byte = text[first];
      if (byte == '{' || byte == '[') {
        inner_ = make_json_call_reader(offer_, close_);
      } else if (byte == '<') {
        inner_ = make_xml_call_reader(offer_, close_);
      } else {
        inner_ = make_keyed_call_reader(offer_, close_);
      }
    }
    return inner_->read(text, extent, sink);
  }
  std::size_t used() const override { return inner_ == nullptr ? 0 : inner_->used(); }

 private:
  const ToolOffer& offer_;
  const std::string close_;
  std::unique_ptr<ToolCallReader> inner_;
};

}  // namespace

MarkMatch match_mark(std::string_view text, std::string_view mark) {
  if (text.size() >= mark.size()) return text.starts_with(mark) ? MarkMatch::kWhole : MarkMatch::kNo;
  return mark.starts_with(text) ? MarkMatch::kPart : MarkMatch::kNo;
}

std::size_t skip_blanks(std::string_view text, std::size_t position) {
  return std::min(text.find_first_not_of(" \t\r\n", position), text.size());
}

std::unique_ptr<ToolCallReader> make_keyed_call_reader(const ToolOffer& offer, std::string close) {
  return std::make_unique<KeyedCallReader>(offer, std::move(close));
}

std::unique_ptr<ToolCallReader> make_gemma_call_reader(const ToolOffer& offer, std::string close) {
  return std::make_unique<GemmaCallReader>(offer, std::move(close));
}

std::unique_ptr<ToolCallReader> make_tagged_call_reader(const ToolOffer& offer, std::string close) {
  return std::make_unique<TaggedCallReader>(offer, std::move(close));
}

}  // namespace tensorfold
