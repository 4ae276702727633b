#include "checkpoint/safetensors.h"

#include <cstring>
#include <optional>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/limits.h"
#include "checkpoint/json_file.h"
#include "checkpoint/tensor_table.h"

namespace tensorfold {
namespace {

using nlohmann::json;

// Bits per element of the format's dtypes; 0 = not one of them.
std::uint64_t dtype_bytes(std::string_view dtype) {
  if (dtype == "F64" || dtype == "I64" || dtype == "U64") return 8;
  if (dtype == "F32" || dtype == "I32" || dtype == "U32") return 4;
  if (dtype == "F16" || dtype == "BF16" || dtype == "I16" || dtype == "U16") return 2;
  if (dtype == "I8" || dtype == "U8" || dtype == "BOOL" || dtype == "F8_E4M3" || dtype == "F8_E5M2" ||
      dtype == "F8_E8M0") {
    return 1;
  }
  return 0;
}

struct HeaderEntry {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::uint64_t> offsets;
  bool has_dtype = false;
  bool has_shape = false;
  bool has_offsets = false;
};

// The header, event by event: nothing is kept that the format doesn't define, so a hostile header can't cost more
// memory than its own length, can't recurse, and can't name a tensor twice unnoticed.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  explicit HeaderReader(const std::filesystem::path& path) : path_(path) {}

  std::vector<HeaderEntry> entries;
  std::string format;

  bool null() override { refuse_value("null"); }
  bool boolean(bool) override { refuse_value("a boolean"); }
  bool number_integer(number_integer_t) override { refuse_value("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { refuse_value("a fraction or a number beyond 64 bits"); }
  bool binary(binary_t&) override { refuse_value("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape) {
      if (entries.back().shape.size() >= limits::kTensorDimensionsMax) refuse_tensor("has too many dimensions");
      if (value > static_cast<std::uint64_t>(INT64_MAX)) refuse_tensor("has a dimension beyond 63 bits");
      entries.back().shape.push_back(static_cast<std::int64_t>(value));
    } else if (place_ == Place::kOffsets) {
      if (entries.back().offsets.size() >= 2) refuse_tensor("has more than two data offsets");
      entries.back().offsets.push_back(value);
    } else {
      refuse_value("a number");
    }
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      if (key_ == "format") format = value;
    } else if (place_ == Place::kTensor && key_ == "dtype") {
      entries.back().dtype = std::move(value);
    } else {
      refuse_value("a string");
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::kOutside) {
      place_ = Place::kRoot;
    } else if (place_ == Place::kRoot) {
      place_ = key_ == "__metadata__" ? Place::kMetadata : Place::kTensor;
    } else {
      refuse_value("an object");
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensor) {
      const HeaderEntry& entry = entries.back();
      if (!entry.has_dtype || !entry.has_shape || entry.offsets.size() != 2) {
        refuse_tensor("needs dtype, shape and two data_offsets");
      }
    }
    place_ = place_ == Place::kRoot ? Place::kOutside : Place::kRoot;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::kTensor && key_ == "shape") {
      place_ = Place::kShape;
    } else if (place_ == Place::kTensor && key_ == "data_offsets") {
      place_ = Place::kOffsets;
    } else {
      refuse_value("an array");
    }
    return true;
  }

  bool end_array() override {
    place_ = Place::kTensor;
    return true;
  }

  bool key(string_t& name) override {
    if (place_ == Place::kRoot) {
      start_entry(name);
    } else if (place_ == Place::kTensor) {
      HeaderEntry& entry = entries.back();
      bool* seen = name == "dtype"          ? &entry.has_dtype
                   : name == "shape"        ? &entry.has_shape
                   : name == "data_offsets" ? &entry.has_offsets
                                            : nullptr;
      if (seen == nullptr) refuse_tensor(fmt::format("has the unknown key {}", in_quotes(name)));
      if (std::exchange(*seen, true)) refuse_tensor(fmt::format("has {} twice", name));
    }
    key_ = std::move(name);
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    fail(ErrorCode::kInvalidCheckpoint,
         "{}: the safetensors header isn't valid JSON at byte {}; download the file again", path_.string(), position);
  }

 private:
  enum class Place { kOutside, kRoot, kMetadata, kTensor, kShape, kOffsets };

  void start_entry(const std::string& name) {
    if (name.size() > limits::kTensorNameBytesMax) {
      fail(ErrorCode::kInvalidCheckpoint, "{}: the tensor name {} is longer than {} bytes", path_.string(),
           in_quotes(name), limits::kTensorNameBytesMax);
    }
    if (!names_.insert(name).second) {
      fail(ErrorCode::kInvalidCheckpoint, "{}: the tensor {} is in the header twice; download the file again",
           path_.string(), in_quotes(name));
    }
    if (name == "__metadata__") return;
    if (entries.size() >= limits::kTensorCountMax) {
      fail(ErrorCode::kInvalidCheckpoint, "{}: more than {} tensors in one file", path_.string(),
           limits::kTensorCountMax);
    }
    entries.emplace_back().name = name;
  }

  [[noreturn]] void refuse_tensor(std::string_view what) const {
    fail(ErrorCode::kInvalidCheckpoint, "{}: the tensor {} {}; download the file again", path_.string(),
         in_quotes(entries.back().name), what);
  }

  [[noreturn]] void refuse_value(std::string_view what) const {
    if (place_ == Place::kOutside || place_ == Place::kRoot || entries.empty()) {
      fail(ErrorCode::kInvalidCheckpoint, "{}: the safetensors header has {} at {}; download the file again",
           path_.string(), what, in_quotes(key_));
    }
    refuse_tensor(fmt::format("has {} at {}", what, in_quotes(key_)));
  }

  const std::filesystem::path& path_;
  Place place_ = Place::kOutside;
  std::string key_;
  std::unordered_set<std::string> names_;
};

TensorInfo check_entry(const MappedFile& file, std::uint64_t data_start, HeaderEntry entry) {
  const std::string where = fmt::format("{}: the tensor {}", file.path().string(), in_quotes(entry.name));
  const std::uint64_t element_bytes = dtype_bytes(entry.dtype);
  if (element_bytes == 0) {
    fail(ErrorCode::kInvalidCheckpoint, "{} has the unknown dtype {}; convert the checkpoint to BF16 or MLX affine",
         where, in_quotes(entry.dtype));
  }
  const auto elements = element_count(entry.shape);
  const auto bytes = elements ? multiply(*elements, element_bytes) : std::nullopt;
  if (!bytes) fail(ErrorCode::kInvalidCheckpoint, "{}'s shape {} overflows 64 bits", where, shape_text(entry.shape));
  const std::uint64_t begin = entry.offsets[0], end = entry.offsets[1];
  const std::uint64_t data_bytes = file.size() - data_start;
  if (begin > end) fail(ErrorCode::kInvalidCheckpoint, "{} ends before it begins ({} > {})", where, begin, end);
  if (end > data_bytes) {
    fail(ErrorCode::kInvalidCheckpoint,
         "{} ends at data byte {}, but the file holds {}: it is truncated, download the file again", where, end,
         data_bytes);
  }
  if (end - begin != *bytes) {
    fail(ErrorCode::kInvalidCheckpoint, "{} has {} bytes, but its shape {} of {} needs {}; download the file again",
         where, end - begin, shape_text(entry.shape), entry.dtype, *bytes);
  }
  TensorInfo tensor;
  tensor.name = std::move(entry.name);
  tensor.dtype = std::move(entry.dtype);
  tensor.shape = std::move(entry.shape);
  tensor.data = file.data() + data_start + begin;
  tensor.bytes = *bytes;
  return tensor;
}

}  // namespace

SafetensorsFile read_safetensors(const MappedFile& file) {
  std::uint64_t header_bytes = 0;
  if (file.size() < sizeof(header_bytes)) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: {} bytes are too short for safetensors; download the file again",
         file.path().string(), file.size());
  }
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  if (header_bytes > limits::kSafetensorsHeaderBytesMax || header_bytes > file.size() - sizeof(header_bytes)) {
    fail(
        ErrorCode::kInvalidCheckpoint,
        "{}: the safetensors header claims {} bytes of a file of {} (limit {}): truncated or not safetensors, download "
        "the file again",
        file.path().string(), header_bytes, file.size(), limits::kSafetensorsHeaderBytesMax);
  }
  const char* header = reinterpret_cast<const char*>(file.data()) + sizeof(header_bytes);
  HeaderReader reader(file.path());
  json::sax_parse(header, header + header_bytes, &reader);

  SafetensorsFile result;
  result.format = std::move(reader.format);
  result.tensors.reserve(reader.entries.size());
  for (HeaderEntry& entry : reader.entries) {
    result.tensors.push_back(check_entry(file, sizeof(header_bytes) + header_bytes, std::move(entry)));
  }
  sort_and_refuse_overlaps(file.path(), result.tensors);
  return result;
}

}  // namespace tensorfold
