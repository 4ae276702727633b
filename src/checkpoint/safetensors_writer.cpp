// See safetensors_writer.h.
#include "checkpoint/safetensors_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "base/limits.h"
#include "checkpoint/json_file.h"
#include "checkpoint/tensor_table.h"

namespace tensorfold {
namespace {

constexpr std::size_t kHeaderAlignment = 8;

// The order of dtypes in the format's library: wider first, floats before integers.
int dtype_rank(const std::string& dtype) {
  static constexpr const char* kOrder[] = {"F64", "F32", "U32", "I32", "BF16", "F16", "U8", "I8"};
  for (int rank = 0; const char* each : kOrder) {
    if (dtype == each) return rank;
    ++rank;
  }
  return -1;
}

std::uint64_t element_bytes(const std::string& dtype) {
  switch (dtype_rank(dtype)) {
    case 0:
      return 8;
    case 1:
    case 2:
    case 3:
      return 4;
    case 4:
    case 5:
      return 2;
    case 6:
    case 7:
      return 1;
    default:
      fail(ErrorCode::kInvalidCheckpoint, "no tensor of dtype {} can be written", in_quotes(dtype));
  }
}

}  // namespace

std::uint64_t tensor_bytes(const TensorLayout& tensor) {
  const auto elements = element_count(tensor.shape);
  const auto bytes = elements ? multiply(*elements, element_bytes(tensor.dtype)) : std::nullopt;
  if (!bytes || *bytes > static_cast<std::uint64_t>(INT64_MAX)) {
    fail(ErrorCode::kInvalidCheckpoint, "the tensor {} with shape {} overflows 63 bits", in_quotes(tensor.name),
         shape_text(tensor.shape));
  }
  return *bytes;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorLayout> tensors,
                                     const std::string& format)
    : file_(path), tensors_(std::move(tensors)) {
  std::sort(tensors_.begin(), tensors_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (std::size_t i = 1; i < tensors_.size(); ++i) {
    if (tensors_[i].name == tensors_[i - 1].name) {
      fail(ErrorCode::kInvalidArgument, "the tensor {} would be written twice", in_quotes(tensors_[i].name));
    }
  }
  std::vector<std::size_t> order(tensors_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return dtype_rank(tensors_[a].dtype) < dtype_rank(tensors_[b].dtype);
  });
  places_.resize(tensors_.size());
  nlohmann::ordered_json header{{"__metadata__", {{"format", format}}}};
  for (const std::size_t index : order) {
    Place& place = places_[index];
    place.offset = data_bytes_;
    place.bytes = tensor_bytes(tensors_[index]);
    if (place.bytes > static_cast<std::uint64_t>(INT64_MAX) - data_bytes_) {
      fail(ErrorCode::kInvalidCheckpoint, "{}: more than 63 bits of data", path.string());
    }
    data_bytes_ += place.bytes;
    header[tensors_[index].name] = {{"dtype", tensors_[index].dtype},
                                    {"shape", tensors_[index].shape},
                                    {"data_offsets", {place.offset, data_bytes_}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  if (text.size() > limits::kSafetensorsHeaderBytesMax) {
    fail(ErrorCode::kResourceExhausted, "{}: a header of {} bytes (limit {})", path.string(), text.size(),
         limits::kSafetensorsHeaderBytesMax);
  }
  const std::uint64_t header_bytes = text.size();
  file_.write(0, &header_bytes, sizeof(header_bytes));
  file_.write(sizeof(header_bytes), text.data(), text.size());
  data_start_ = sizeof(header_bytes) + header_bytes;
}

SafetensorsWriter::Place& SafetensorsWriter::place(const std::string& name) {
  const auto found =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const TensorLayout& tensor, const std::string& key) { return tensor.name < key; });
  TF_ASSERT(found != tensors_.end() && found->name == name);
  return places_[static_cast<std::size_t>(found - tensors_.begin())];
}

void SafetensorsWriter::write(const std::string& name, std::uint64_t offset, const void* data, std::size_t bytes) {
  Place& target = place(name);
  TF_ASSERT(offset <= target.bytes && bytes <= target.bytes - offset);
  file_.write(data_start_ + target.offset + offset, data, bytes);
  target.written += bytes;
}

void SafetensorsWriter::finish() {
  for (const Place& each : places_) TF_ASSERT(each.written == each.bytes);
  file_.finish();
}

}  // namespace tensorfold
