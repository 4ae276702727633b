// from_json and to_json.
#include "text/jinja_json.h"

#include <algorithm>

#include "text/jinja_runtime.h"
#include "text/jinja_unicode.h"

namespace tensorfold::jinja {

using Json = nlohmann::ordered_json;

Value from_json(Runtime& runtime, const Json& json, bool data, int depth) {
  runtime.check_depth(depth);
  runtime.charge(1);
  Value value;
  switch (json.type()) {
    case Json::value_t::boolean:
      value = boolean_value(json.get<bool>());
      break;
    case Json::value_t::number_integer:
      value = integer_value(json.get<std::int64_t>());
      break;
    case Json::value_t::number_unsigned:
      value = integer_value(json.get<std::uint64_t>());
      break;
    case Json::value_t::number_float:
      value = float_value(json.get<double>());
      break;
    case Json::value_t::string:
      return runtime.text(json.get_ref<const std::string&>(), data);
    case Json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const Json& item : json) items.push_back(from_json(runtime, item, data, depth + 1));
      value = runtime.list(std::move(items));
      break;
    }
    case Json::value_t::object: {
      runtime.charge_items(json.size());
      value.kind = Kind::kDict;
      value.dict = runtime.make<DictObject>();
      for (const auto& [key, item] : json.items()) {  // the parser has merged equal keys already
        value.dict->entries().emplace_back(runtime.text(key, data), from_json(runtime, item, data, depth + 1));
      }
      break;
    }
    default:
      value = none_value();
      break;
  }
  value.data = data;
  return value;
}

namespace {

class Writer {
 public:
  Writer(Runtime& runtime, const JsonOptions& options)
      : out(runtime.make_text()), runtime_(runtime), options_(options) {}

  void write(const Value& value, int depth) {
    runtime_.check_depth(depth);
    runtime_.charge(2);
    switch (value.kind) {
      case Kind::kNone:
        out->append("null", value.data);
        return;
      case Kind::kBoolean:
        out->append(value.boolean ? "true" : "false", value.data);
        return;
      case Kind::kInteger:
        out->append(integer_text(value.integer), value.data);
        return;
      case Kind::kFloat:
        out->append(number_text(value.number), value.data);
        return;
      case Kind::kText:
        write_text(*value.text);
        return;
      case Kind::kList:
      case Kind::kTuple:
        write_list(value, depth);
        return;
      case Kind::kDict:
        write_dict(value, depth);
        return;
      default:
        runtime_.error("a value of type {} can't be written as JSON", type_name(value));
    }
  }

  Text* const out;

 private:
  static std::string number_text(double number) {
    if (number != number) return "NaN";
    std::string text = float_text(number);
    if (text == "inf") return "Infinity";
    return text == "-inf" ? "-Infinity" : text;
  }

  void new_line(bool data, int depth) {
    if (!options_.indent) return;
    runtime_.charge_bytes(options_.indent->size() * static_cast<std::size_t>(depth));
    std::string text = "\n";
    for (int i = 0; i < depth; ++i) text += *options_.indent;
    out->append(text, data);
  }

  void write_list(const Value& value, int depth) {
    const std::vector<Value>& items = value.list->items;
    out->append("[", value.data);
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out->append(options_.item_separator, value.data);
      new_line(value.data, depth + 1);
      write(items[i], depth + 1);
    }
    if (!items.empty()) new_line(value.data, depth);
    out->append("]", value.data);
  }

  void write_dict(const Value& value, int depth) {
    std::vector<DictObject::Entry> entries = value.dict->entries();
    runtime_.charge_items(entries.size());
    if (options_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(), [&](const DictObject::Entry& a, const DictObject::Entry& b) {
        return less_than(runtime_, a.first, b.first);
      });
    }
    out->append("{", value.data);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out->append(options_.item_separator, value.data);
      new_line(value.data, depth + 1);
      write_key(entries[i].first);
      out->append(options_.key_separator, value.data);
      write(entries[i].second, depth + 1);
    }
    if (!entries.empty()) new_line(value.data, depth);
    out->append("}", value.data);
  }

  void write_key(const Value& key) {
    if (key.is_text()) return write_text(*key.text);
    if (key.kind == Kind::kTuple || key.is_undefined()) {
      runtime_.error("JSON keys must be strings or numbers, not {}", type_name(key));
    }
    out->append("\"", key.data);
    write(key, 0);
    out->append("\"", key.data);
  }

  void write_text(const Text& text) {
    runtime_.charge_bytes(text.size());
    const bool frame = text.any_data();
    out->append("\"", frame);
    const std::string& bytes = text.bytes();
    std::size_t plain = 0;  // start of the bytes that go out unchanged
    for (std::size_t offset = 0; offset < bytes.size();) {
      const std::size_t length = code_point_length(bytes, offset);
      const std::string escaped = escape(code_point_at(bytes, offset));
      if (!escaped.empty()) {
        out->append(text, plain, offset);
        out->append(escaped, text.data_at(offset));
        plain = offset + length;
      }
      offset += length;
    }
    out->append(text, plain, bytes.size());
    out->append("\"", frame);
    runtime_.charge_bytes(out->size() > runtime_.limits().output_bytes ? out->size() : 0);
  }

  /// Empty when the code point needs no escape.
  std::string escape(std::uint32_t code) const {
    switch (code) {
      case '"':
        return "\\\"";
      case '\\':
        return "\\\\";
      case '\n':
        return "\\n";
      case '\r':
        return "\\r";
      case '\t':
        return "\\t";
      case '\b':
        return "\\b";
      case '\f':
        return "\\f";
      default:
        break;
    }
    if (code >= 0x20 && (code < 0x80 || !options_.ensure_ascii) && !(options_.ensure_ascii && code == 0x7f)) return "";
    if (code < 0x10000) return fmt::format("\\u{:04x}", code);
    const std::uint32_t offset = code - 0x10000;
    return fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + (offset >> 10), 0xdc00 + (offset & 0x3ff));
  }

  Runtime& runtime_;
  const JsonOptions& options_;
};

}  // namespace

Value to_json(Runtime& runtime, const Value& value, const JsonOptions& options) {
  Writer writer(runtime, options);
  writer.write(value, 0);
  return text_value(writer.out);
}

}  // namespace tensorfold::jinja
