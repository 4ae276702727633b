// A SAX reader: the DOM of a 30 MB tokenizer.json takes seconds and half a gigabyte, its useful content a tenth of
// that.
#include "text/tokenizer_json.h"

#include "base/error.h"
#include "base/limits.h"

namespace tensorfold {
namespace {

using nlohmann::json;

class Reader final : public json::json_sax_t {
 public:
  explicit Reader(TokenizerDocument& document) : document_(document) {}
  const std::string& error() const { return error_; }

  bool null() override { return value(nullptr); }
  bool boolean(bool v) override { return value(v); }
  bool number_integer(number_integer_t v) override { return number(v, v); }
  bool number_unsigned(number_unsigned_t v) override {
    return number(v > (1ull << 40) ? (1ll << 40) : static_cast<std::int64_t>(v), v);
  }
  bool number_float(number_float_t v, const string_t&) override { return value(v); }
  bool binary(binary_t&) override { return refuse("binary value"); }

  bool string(string_t& v) override {
    if (place_ == Place::kMerges) return merge_text(v);
    if (place_ == Place::kMergePair) {
      if (pair_size_ == 2) return refuse("a merge has more than two parts");
      (pair_size_++ == 0 ? pair_.first : pair_.second) = std::move(v);
      return true;
    }
    return value(std::move(v));
  }

  bool key(string_t& v) override {
    if (place_ != Place::kVocabulary && stack_.empty()) return refuse("key outside an object");
    key_ = std::move(v);
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ != Place::kDocument) return refuse("an object where the vocabulary or the merges hold none");
    if (depth_is_excessive()) return false;
    if (stack_.size() == 2 && in_model() && key_ == "vocab") {
      place_ = Place::kVocabulary;
      return true;
    }
    return open(json::object());
  }
  bool end_object() override {
    if (place_ == Place::kVocabulary) {
      place_ = Place::kDocument;
      return true;
    }
    return close();
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::kMerges) {
      place_ = Place::kMergePair;
      pair_size_ = 0;
      return true;
    }
    if (place_ != Place::kDocument) return refuse("an array where the vocabulary or the merges hold none");
    if (depth_is_excessive()) return false;
    if (stack_.size() == 2 && in_model() && key_ == "merges") {
      place_ = Place::kMerges;
      return true;
    }
    return open(json::array());
  }
  bool end_array() override {
    if (place_ == Place::kMergePair) {
      if (pair_size_ != 2) return refuse("a merge has fewer than two parts");
      document_.merges.push_back(std::move(pair_));
      pair_ = {};
      place_ = Place::kMerges;
      return true;
    }
    if (place_ == Place::kMerges) {
      place_ = Place::kDocument;
      return true;
    }
    return close();
  }

  bool parse_error(std::size_t position, const std::string&, const json::exception&) override {
    error_ = fmt::format("not valid JSON at byte {}; download the file again", position);
    return false;
  }

 private:
  enum class Place { kDocument, kVocabulary, kMerges, kMergePair };

  bool refuse(std::string message) {
    error_ = std::move(message);
    return false;
  }
  bool depth_is_excessive() {
    if (stack_.size() < static_cast<std::size_t>(limits::kJsonDepthMax)) return false;
    error_ = fmt::format("nested deeper than {} levels", limits::kJsonDepthMax);
    return true;
  }
  bool in_model() const { return model_ != nullptr && stack_.back() == model_; }

  template <typename Number>
  bool number(std::int64_t clamped, Number v) {
    if (place_ != Place::kVocabulary) return value(v);
    document_.vocabulary.emplace_back(std::move(key_), clamped);
    return true;
  }

  bool merge_text(std::string& text) {
    // A merge as one string: the parts are separated by the one space (parts hold none).
    const std::size_t space = text.find(' ');
    if (space == text.npos || text.find(' ', space + 1) != text.npos) {
      return refuse(fmt::format("the merge '{}' isn't two parts separated by a space", text));
    }
    document_.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    return true;
  }

  json* place_value(json v) {
    if (stack_.empty()) {
      document_.rest = std::move(v);
      return &document_.rest;
    }
    json& parent = *stack_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(v));
      return &parent.back();
    }
    json& slot = parent[key_];
    slot = std::move(v);
    return &slot;
  }

  template <typename Value>
  bool value(Value&& v) {
    if (place_ == Place::kVocabulary)
      return refuse(fmt::format("the id of vocabulary entry '{}' isn't an integer", key_));
    if (place_ != Place::kDocument) return refuse("a merge is neither a string nor a pair of strings");
    place_value(json(std::forward<Value>(v)));
    return true;
  }
  bool open(json container) {
    const bool is_model = stack_.size() == 1 && key_ == "model" && container.is_object();
    json* placed = place_value(std::move(container));
    stack_.push_back(placed);
    if (is_model) model_ = placed;
    return true;
  }
  bool close() {
    if (stack_.back() == model_) model_ = nullptr;
    stack_.pop_back();
    return true;
  }

  TokenizerDocument& document_;
  Place place_ = Place::kDocument;
  std::vector<json*> stack_;  // open containers; a child is complete before its parent grows again
  json* model_ = nullptr;
  std::string key_;
  std::pair<std::string, std::string> pair_;
  int pair_size_ = 0;
  std::string error_;
};

}  // namespace

TokenizerDocument parse_tokenizer_document(std::string_view text) {
  if (text.size() > limits::kJsonFileBytesMax) {
    fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: larger than {} bytes", limits::kJsonFileBytesMax);
  }
  if (text.find_first_not_of(" \t\r\n") == text.npos) {
    fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: the file is empty; download it again");
  }
  TokenizerDocument document;
  Reader reader(document);
  bool complete = false;
  try {
    complete = json::sax_parse(text.begin(), text.end(), &reader);
  } catch (const json::exception&) {
    fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: not valid JSON; download the file again");
  }
  if (!complete) fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: {}", reader.error());
  if (!document.rest.is_object()) fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: isn't a JSON object");
  return document;
}

const json& json_member(const json& object, const char* key, std::string_view owner) {
  if (!object.is_object()) fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: {} isn't an object", owner);
  const auto found = object.find(key);
  if (found == object.end()) fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: {} has no '{}'", owner, key);
  return *found;
}

std::string json_string(const json& object, const char* key, std::string_view owner) {
  const json& value = json_member(object, key, owner);
  if (!value.is_string()) fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: '{}' of {} isn't a string", key, owner);
  return value.get<std::string>();
}

const json& json_array(const json& object, const char* key, std::string_view owner) {
  const json& value = json_member(object, key, owner);
  if (!value.is_array()) fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: '{}' of {} isn't an array", key, owner);
  return value;
}

std::int64_t json_integer(const json& object, const char* key, std::string_view owner) {
  const json& value = json_member(object, key, owner);
  if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<std::uint64_t>() > (1ull << 62))) {
    fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: '{}' of {} isn't an integer", key, owner);
  }
  return value.get<std::int64_t>();
}

bool json_bool(const json& object, const char* key, bool absent) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return absent;
  if (!found->is_boolean()) fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: '{}' isn't true or false", key);
  return found->get<bool>();
}

std::string json_string_or_empty(const json& object, const char* key) {
  if (!object.is_object()) return "";
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace tensorfold
