// The JSON form of calls (Hermes, Qwen2.5, Qwen3). While the block grows, the arguments of a single call are passed on
// as they are written, blanks between tokens left out; everything else is read when the block is whole.
#include <algorithm>
#include <array>

#include "base/limits.h"
#include "text/tool_call_reader.h"
#include "text/tool_value.h"

namespace tensorfold {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 4> kNameKeys = {"name", "tool", "function", "call"};
constexpr std::array<std::string_view, 3> kArgumentKeys = {"arguments", "args", "parameters"};

bool is_one_of(std::string_view text, auto const& list) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

/// The arguments of a call as an object; a text that holds one counts, too.
std::optional<Json> arguments_object(const Json& value) {
  if (value.is_object()) return value;
  if (value.is_null()) return Json::object();
  if (!value.is_string()) return std::nullopt;
  std::optional<Json> parsed = parse_bounded_json(value.get_ref<const std::string&>());
  return parsed && parsed->is_object() ? parsed : std::nullopt;
}

std::optional<NamedArguments> call_of_object(const Json& object, const ToolOffer& offer, bool only_offered) {
  if (!object.is_object()) return std::nullopt;
  const auto wrapped = object.find("function");  // {"type": "function", "function": {"name": ..., ...}}
  if (wrapped != object.end() && wrapped->is_object()) return call_of_object(*wrapped, offer, only_offered);
  const std::string* name = nullptr;
  const Json* arguments = nullptr;
  std::string_view name_key;
  for (const std::string_view key : kNameKeys) {
    const auto found = object.find(std::string(key));
    if (name != nullptr || found == object.end() || !found->is_string()) continue;
    name = &found->get_ref<const std::string&>();
    name_key = key;
  }
  for (const std::string_view key : kArgumentKeys) {
    const auto found = object.find(std::string(key));
    if (arguments == nullptr && found != object.end()) arguments = &*found;
  }
  if (name == nullptr) return std::nullopt;
  const std::optional<std::string> called = only_offered ? offer.find(*name) : offer.call_name(*name);
  if (!called) return std::nullopt;
  Json rest = Json::object();
  if (arguments == nullptr) {
    for (const auto& [key, value] : object.items()) {
      if (key != name_key) rest[key] = value;
    }
    arguments = &rest;
  }
  const std::optional<Json> given = arguments_object(*arguments);
  return given ? std::optional<NamedArguments>({*called, compact_json(*given)}) : std::nullopt;
}

class JsonCallReader final : public ToolCallReader {
 public:
  JsonCallReader(const ToolOffer& offer, std::string close) : offer_(offer), close_(std::move(close)) {}

  State read(std::string_view text, BlockExtent extent, ToolCallSink& sink) override {
    for (; position_ < text.size(); ++position_) {
      const char byte = text[position_];
      if (!nesting_.in_string() && byte == '<') {
        const MarkMatch match = match_mark(text.substr(position_), close_);
        if (match == MarkMatch::kWhole) return finish(text, sink);
        if (match == MarkMatch::kNo) return broken(position_ + 1);
        break;  // the mark, in part
      }
      take(byte, text, sink);
      if (nesting_.depth() > static_cast<std::size_t>(limits::kJsonDepthMax)) return broken(position_);
    }
    flush(sink);
    if (extent == BlockExtent::kGrowing) return State::kReading;
    // Without its mark: what is open is closed, but only where the model itself ended the reply.
    if (extent == BlockExtent::kCut && nesting_.depth() > 0) return broken(text.size());
    return finish(text, sink);
  }
  std::size_t used() const override { return used_; }

 private:
  enum class Follow { kNotYet, kArguments, kOver, kNever };

  State broken(std::size_t used) {
    used_ = used;
    return State::kBroken;
  }

  /// One byte outside or inside strings, with what it means at the top of a single call's object.
  void take(char byte, std::string_view text, ToolCallSink& sink) {
    const bool was_in_string = nesting_.in_string();
    const std::size_t depth = nesting_.depth();
    nesting_.step(byte);
    const bool blank = !was_in_string && (byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n');
    if (follow_ == Follow::kArguments) {
      const bool bare_control = was_in_string && static_cast<unsigned char>(byte) < 0x20;
      if (bare_control) outgoing_ += json_escaped(std::string_view(&byte, 1));
      if (!blank && !bare_control) outgoing_ += byte;
      if (nesting_.depth() == 1 && depth == 2) follow_ = Follow::kOver;
      return;
    }
    if (follow_ != Follow::kNotYet || blank) return;
    if (depth == 0) {
      if (byte != '{') follow_ = Follow::kNever;
      return;
    }
    if (depth != 1) return;
    if (!was_in_string && byte == '"') string_begin_ = position_ + 1;
    if (was_in_string && !nesting_.in_string()) note_string(text.substr(string_begin_, position_ - string_begin_));
    if (!was_in_string && byte == ',') key_.clear();
    if (!was_in_string && byte == '{') open_value(sink);
  }

  void note_string(std::string_view raw) {
    if (raw.find('\\') != std::string_view::npos) {
      follow_ = Follow::kNever;  // a spelling that only a parser should read
    } else if (key_.empty()) {
      key_ = raw;
    } else if (is_one_of(key_, kNameKeys) && !name_) {
      name_ = offer_.call_name(raw);
      if (!name_) follow_ = Follow::kNever;
    }
  }

  void open_value(ToolCallSink& sink) {
    if (!is_one_of(key_, kArgumentKeys) || !name_) {
      follow_ = Follow::kNever;
      return;
    }
    follow_ = Follow::kArguments;
    sink.begin(*name_);
    begun_ = true;
    outgoing_ = "{";
  }

  /// What is certain: text that ends inside a character or an escape is no worse for being sent in two pieces.
  void flush(ToolCallSink& sink) {
    if (!outgoing_.empty()) sink.add(outgoing_);
    outgoing_.clear();
  }

  /// The block's text is whole, up to position_ (where its closing mark stands, if it has one).
  State finish(std::string_view text, ToolCallSink& sink) {
    const std::string_view inner = text.substr(0, position_);
    used_ = std::min(text.size(), position_ + close_.size());
    std::optional<Json> json = parse_unclosed_json(without_surplus(inner));
    const std::vector<NamedArguments> calls =
        json ? calls_of_json(*json, offer_, false) : std::vector<NamedArguments>();
    if (calls.empty()) return State::kBroken;
    if (begun_) {
      if (follow_ == Follow::kArguments) {  // the arguments' own brackets are among those that are missing
        const std::string closers = nesting_.closers();
        outgoing_ += closers.substr(0, closers.size() - 1);
      }
      flush(sink);
      sink.end();
      return State::kDone;
    }
    for (const NamedArguments& call : calls) {
      sink.begin(call.name);
      sink.add(call.arguments);
      sink.end();
    }
    return State::kDone;
  }

  /// A bracket too many at the end is a slip that changes nothing.
  static std::string_view without_surplus(std::string_view text) {
    JsonNesting nesting;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const std::size_t depth = nesting.depth();
      nesting.step(text[i]);
      if (depth != 1 || nesting.depth() != 0) continue;
      const std::string_view rest = text.substr(i + 1);
      return rest.find_first_not_of(" \t\r\n}]") == std::string_view::npos ? text.substr(0, i + 1) : text;
    }
    return text;
  }

  const ToolOffer& offer_;
  const std::string close_;
  JsonNesting nesting_;
  Follow follow_ = Follow::kNotYet;
  bool begun_ = false;
  std::size_t position_ = 0;
  std::size_t used_ = 0;
  std::size_t string_begin_ = 0;
  std::string key_;  // of the member at the top that is being read
  std::optional<std::string> name_;
  std::string outgoing_;
};

}  // namespace

std::vector<NamedArguments> calls_of_json(const Json& json, const ToolOffer& offer, bool only_offered) {
  std::vector<NamedArguments> calls;
  const auto add = [&](const Json& object) {
    std::optional<NamedArguments> call = call_of_object(object, offer, only_offered);
    if (call) calls.push_back(std::move(*call));
    return call.has_value();
  };
  if (!json.is_array()) {
    add(json);
    return calls;
  }
  for (const Json& object : json) {
    if (!add(object)) return {};
  }
  return calls;
}

std::unique_ptr<ToolCallReader> make_json_call_reader(const ToolOffer& offer, std::string close) {
  return std::make_unique<JsonCallReader>(offer, std::move(close));
}

}  // namespace tensorfold
