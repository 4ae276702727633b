#include "checkpoint/gguf_metadata.h"

#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/limits.h"
#include "checkpoint/json_file.h"

namespace tensorfold {
namespace {

using nlohmann::json;

template <typename Value>
Value load(const std::byte* data) {
  Value value;
  std::memcpy(&value, data, sizeof(value));
  return value;
}

json load_json(GgufValueType type, const std::byte* data) {
  switch (type) {
    case GgufValueType::kU8:
      return load<std::uint8_t>(data);
    case GgufValueType::kI8:
      return load<std::int8_t>(data);
    case GgufValueType::kU16:
      return load<std::uint16_t>(data);
    case GgufValueType::kI16:
      return load<std::int16_t>(data);
    case GgufValueType::kU32:
      return load<std::uint32_t>(data);
    case GgufValueType::kI32:
      return load<std::int32_t>(data);
    case GgufValueType::kF32:
      return load<float>(data);
    case GgufValueType::kBool:
      return load<std::uint8_t>(data) != 0;
    case GgufValueType::kU64:
      return load<std::uint64_t>(data);
    case GgufValueType::kI64:
      return load<std::int64_t>(data);
    case GgufValueType::kF64:
      return load<double>(data);
    case GgufValueType::kString:
    case GgufValueType::kArray:
      break;
  }
  return nullptr;
}

double load_number(GgufValueType type, const std::byte* data) {
  const json value = load_json(type, data);
  return value.is_boolean() ? static_cast<double>(value.get<bool>()) : value.get<double>();
}

bool is_known(std::uint32_t type) {
  return type <= static_cast<std::uint32_t>(GgufValueType::kF64);
}

// The tokenizer reads these through strings() and numbers(), never from config().
bool is_tokenizer_table(std::string_view key) {
  return key.starts_with("tokenizer.");
}

}  // namespace

const std::byte* GgufCursor::skip(std::uint64_t bytes, std::string_view what) {
  if (bytes > remaining()) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: the file ends inside {} (at byte {}): truncated, download the file again",
         file_.path().string(), what, position_);
  }
  const std::byte* data = file_.data() + position_;
  position_ += bytes;
  return data;
}

std::uint32_t GgufCursor::read_u32(std::string_view what) {
  return load<std::uint32_t>(skip(4, what));
}
std::uint64_t GgufCursor::read_u64(std::string_view what) {
  return load<std::uint64_t>(skip(8, what));
}

std::string_view GgufCursor::read_string(std::string_view what, std::uint64_t bytes_max) {
  const std::uint64_t bytes = read_u64(what);
  if (bytes > bytes_max) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: {} claims to be {} bytes long (limit {}); download the file again",
         file_.path().string(), what, bytes, bytes_max);
  }
  return {reinterpret_cast<const char*>(skip(bytes, what)), bytes};
}

GgufMetadata::GgufMetadata(GgufCursor& cursor, std::uint64_t count) : file_(cursor.file()) {
  for (std::uint64_t i = 0; i < count; ++i) read_pair(cursor);
}

void GgufMetadata::read_pair(GgufCursor& cursor) {
  const std::string key(cursor.read_string("a metadata key", limits::kGgufKeyBytesMax));
  const std::string what = fmt::format("the metadata value of {}", in_quotes(key));
  if (config_.contains(key) || arrays_.contains(key)) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: the metadata key {} appears twice; download the file again",
         file_.path().string(), in_quotes(key));
  }
  const std::uint32_t type_number = cursor.read_u32(what);
  if (!is_known(type_number)) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: {} has the unknown type {}; download the file again",
         file_.path().string(), what, type_number);
  }
  const auto type = static_cast<GgufValueType>(type_number);
  if (type == GgufValueType::kString) {
    config_[key] = cursor.read_string(what, limits::kGgufStringBytesMax);
  } else if (type != GgufValueType::kArray) {
    config_[key] = load_json(type, cursor.skip(gguf_value_bytes(type), what));
  } else {
    const Array array = read_array(cursor, key);
    arrays_.emplace(key, array);
    // The bound is on the sum, so that many arrays can't do what one can't.
    if (is_tokenizer_table(key) || config_elements_ + array.count > limits::kGgufConfigArrayLengthMax) return;
    config_elements_ += array.count;
    json values = json::array();
    GgufCursor reader(file_, array.position);
    for (std::uint64_t i = 0; i < array.count; ++i) {
      if (array.element_type == GgufValueType::kString) {
        values.push_back(reader.read_string(what, limits::kGgufStringBytesMax));
      } else {
        values.push_back(load_json(array.element_type, reader.skip(gguf_value_bytes(array.element_type), what)));
      }
    }
    config_[key] = std::move(values);
  }
}

GgufMetadata::Array GgufMetadata::read_array(GgufCursor& cursor, const std::string& key) {
  const std::string what = fmt::format("the metadata array {}", in_quotes(key));
  const std::uint32_t type_number = cursor.read_u32(what);
  const std::uint64_t count = cursor.read_u64(what);
  const auto type = static_cast<GgufValueType>(type_number);
  if (!is_known(type_number) || type == GgufValueType::kArray) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: {} has the unsupported element type {}; download the file again",
         file_.path().string(), what, type_number);
  }
  if (count > limits::kGgufArrayLengthMax) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: {} claims {} elements (limit {}); download the file again",
         file_.path().string(), what, count, limits::kGgufArrayLengthMax);
  }
  const Array array{type, count, cursor.position()};
  if (type == GgufValueType::kString) {
    for (std::uint64_t i = 0; i < count; ++i) cursor.read_string(what, limits::kGgufStringBytesMax);
  } else {
    cursor.skip(count * gguf_value_bytes(type), what);  // at most 2^24 · 8
  }
  return array;
}

std::vector<std::string> GgufMetadata::strings(std::string_view key) const {
  const auto found = arrays_.find(std::string(key));
  if (found == arrays_.end()) return {};
  const Array& array = found->second;
  if (array.element_type != GgufValueType::kString) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: the metadata array {} should hold strings; convert the model again",
         file_.path().string(), in_quotes(key));
  }
  std::vector<std::string> values;
  values.reserve(array.count);
  GgufCursor reader(file_, array.position);
  for (std::uint64_t i = 0; i < array.count; ++i)
    values.emplace_back(reader.read_string(key, limits::kGgufStringBytesMax));
  return values;
}

std::vector<double> GgufMetadata::numbers(std::string_view key) const {
  const auto found = arrays_.find(std::string(key));
  if (found == arrays_.end()) return {};
  const Array& array = found->second;
  if (array.element_type == GgufValueType::kString) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: the metadata array {} should hold numbers; convert the model again",
         file_.path().string(), in_quotes(key));
  }
  std::vector<double> values;
  values.reserve(array.count);
  GgufCursor reader(file_, array.position);
  const std::size_t bytes = gguf_value_bytes(array.element_type);
  for (std::uint64_t i = 0; i < array.count; ++i) {
    values.push_back(load_number(array.element_type, reader.skip(bytes, key)));
  }
  return values;
}

}  // namespace tensorfold
