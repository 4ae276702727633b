// See gguf_writer.h.
#include "checkpoint/gguf_writer.h"

#include <cstring>
#include <string_view>

#include "base/error.h"
#include "checkpoint/gguf_types.h"
#include "checkpoint/json_file.h"
#include "checkpoint/partial_file.h"

namespace tensorfold {
namespace {

constexpr std::uint32_t kVersion = 3;
constexpr std::uint64_t kAlignment = 32;  // the container's default: no "general.alignment" is written

std::uint64_t aligned(std::uint64_t offset) {
  return (offset + kAlignment - 1) / kAlignment * kAlignment;
}

/// The header as it grows.
class HeaderBytes {
 public:
  template <typename Number>
  void add(Number value) {
    char bytes[sizeof(value)];
    std::memcpy(bytes, &value, sizeof(value));
    text_.append(bytes, sizeof(value));
  }
  void add_text(std::string_view text) {
    add<std::uint64_t>(text.size());
    text_.append(text);
  }
  void add_type(GgufValueType type) { add(static_cast<std::uint32_t>(type)); }
  void add_array(GgufValueType type, std::size_t count) {
    add_type(GgufValueType::kArray);
    add_type(type);
    add<std::uint64_t>(count);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

struct ValueAdder {
  HeaderBytes& header;
  void operator()(std::uint32_t value) const {
    header.add_type(GgufValueType::kU32);
    header.add(value);
  }
  void operator()(float value) const {
    header.add_type(GgufValueType::kF32);
    header.add(value);
  }
  void operator()(bool value) const {
    header.add_type(GgufValueType::kBool);
    header.add<std::uint8_t>(value ? 1 : 0);
  }
  void operator()(const std::string& value) const {
    header.add_type(GgufValueType::kString);
    header.add_text(value);
  }
  void operator()(const std::vector<std::string>& values) const {
    header.add_array(GgufValueType::kString, values.size());
    for (const std::string& value : values) header.add_text(value);
  }
  void operator()(const std::vector<std::int32_t>& values) const {
    header.add_array(GgufValueType::kI32, values.size());
    for (const std::int32_t value : values) header.add(value);
  }
};

const GgufTensorType& type_of(const TensorInfo& tensor) {
  const GgufTensorType* type = gguf_tensor_type(tensor.dtype);
  if (type == nullptr || type->block_bytes == 0) {
    fail(ErrorCode::kInvalidArgument, "the tensor {} has dtype {}, which a GGUF file can't hold here",
         in_quotes(tensor.name), tensor.dtype);
  }
  return *type;
}

}  // namespace

void write_gguf(const std::filesystem::path& path, std::span<const GgufEntry> metadata,
                std::span<const TensorInfo> tensors,
                const std::function<void(double fraction, const std::string& what)>& progress) {
  HeaderBytes header;
  header.add<std::uint32_t>(0x46554747u);  // "GGUF"
  header.add(kVersion);
  header.add<std::uint64_t>(tensors.size());
  header.add<std::uint64_t>(metadata.size());
  for (const GgufEntry& entry : metadata) {
    header.add_text(entry.key);
    std::visit(ValueAdder{header}, entry.value);
  }
  std::uint64_t data_bytes = 0;
  for (const TensorInfo& tensor : tensors) {
    header.add_text(tensor.name);
    header.add(static_cast<std::uint32_t>(tensor.shape.size()));
    for (auto dimension = tensor.shape.rbegin(); dimension != tensor.shape.rend(); ++dimension) {
      header.add(static_cast<std::uint64_t>(*dimension));
    }
    header.add(type_of(tensor).id);
    header.add(data_bytes);
    data_bytes = aligned(data_bytes + tensor.bytes);
  }
  PartialFile file(path);
  file.write(0, header.text().data(), header.text().size());
  const std::uint64_t start = aligned(header.text().size());
  std::uint64_t offset = 0;
  const std::byte padding[kAlignment] = {};
  for (const TensorInfo& tensor : tensors) {
    if (progress) progress(static_cast<double>(offset) / static_cast<double>(data_bytes), tensor.name);
    file.write(start + offset, tensor.data, tensor.bytes);
    const std::uint64_t end = offset + tensor.bytes;
    offset = aligned(end);
    file.write(start + end, padding, offset - end);
  }
  file.finish();
}

}  // namespace tensorfold
