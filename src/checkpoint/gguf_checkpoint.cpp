#include "checkpoint/gguf_checkpoint.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/limits.h"
#include "checkpoint/gguf_metadata.h"
#include "checkpoint/json_file.h"
#include "checkpoint/stored_checkpoint.h"
#include "checkpoint/tensor_table.h"

namespace tensorfold {
namespace {

constexpr std::uint64_t kDefaultAlignment = 32;
constexpr int kGgufDimensionsMax = 4;

struct Counts {
  std::uint64_t tensors;
  std::uint64_t pairs;
};

Counts read_header(GgufCursor& cursor) {
  const std::string file = cursor.file().path().string();
  const std::byte* magic = cursor.skip(4, "the GGUF magic");
  if (std::memcmp(magic, "GGUF", 4) != 0) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: not a GGUF file; pass a .gguf file or a checkpoint's folder", file);
  }
  const std::uint32_t version = cursor.read_u32("the GGUF version");
  if (version != 2 && version != 3) {
    fail(ErrorCode::kInvalidCheckpoint,
         "{}: GGUF version {} isn't supported (2 and 3, little-endian, are); convert the model again", file, version);
  }
  const Counts counts{cursor.read_u64("the tensor count"), cursor.read_u64("the metadata count")};
  // The smallest tensor info is 8 + 4 + 8 + 4 + 8 bytes and the smallest pair 8 + 4 + 1: more can't be in the file.
  if (counts.tensors > limits::kTensorCountMax || counts.tensors > cursor.remaining() / 32) {
    fail(ErrorCode::kInvalidCheckpoint,
         "{}: the header claims {} tensors, more than the file can hold or than {}; it is cut short or damaged, "
         "download it again",
         file, counts.tensors, limits::kTensorCountMax);
  }
  if (counts.pairs > limits::kGgufMetadataCountMax || counts.pairs > cursor.remaining() / 13) {
    fail(ErrorCode::kInvalidCheckpoint,
         "{}: the header claims {} metadata values, more than the file can hold or than {}; it is cut short or "
         "damaged, download it again",
         file, counts.pairs, limits::kGgufMetadataCountMax);
  }
  return counts;
}

std::uint64_t read_alignment(const MappedFile& file, const nlohmann::json& config) {
  const auto found = config.find("general.alignment");
  if (found == config.end()) return kDefaultAlignment;
  const bool number = found->is_number_unsigned();
  const std::uint64_t alignment = number ? found->get<std::uint64_t>() : 0;
  if (!std::has_single_bit(alignment) || alignment > (1ull << 30)) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: general.alignment is {}, not a power of two; convert the model again",
         file.path().string(), found->dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
  }
  return alignment;
}

struct PlacedTensor {
  TensorInfo info;
  std::uint64_t offset = 0;  // from the data section's start
};

std::uint64_t tensor_bytes(const GgufTensorType& type, const TensorInfo& tensor, const std::string& where) {
  const std::uint64_t columns = static_cast<std::uint64_t>(tensor.shape.back());
  if (columns % type.block_elements != 0) {
    fail(ErrorCode::kInvalidCheckpoint,
         "{} has shape {}: rows of {} must be a multiple of {} long; convert the model again", where,
         shape_text(tensor.shape), type.name, type.block_elements);
  }
  const auto elements = element_count(tensor.shape);
  const auto bytes = elements ? multiply(*elements / type.block_elements, type.block_bytes) : std::nullopt;
  if (!bytes) fail(ErrorCode::kInvalidCheckpoint, "{}'s shape {} overflows 64 bits", where, shape_text(tensor.shape));
  return *bytes;
}

PlacedTensor read_tensor_info(GgufCursor& cursor) {
  const std::string file = cursor.file().path().string();
  PlacedTensor tensor;
  tensor.info.name = cursor.read_string("a tensor name", limits::kTensorNameBytesMax);
  const std::string where = fmt::format("{}: the tensor {}", file, in_quotes(tensor.info.name));
  const std::uint32_t dimensions = cursor.read_u32("a tensor info");
  if (dimensions < 1 || dimensions > kGgufDimensionsMax) {
    fail(ErrorCode::kInvalidCheckpoint, "{} has {} dimensions, not 1 to {}; download the file again", where, dimensions,
         kGgufDimensionsMax);
  }
  for (std::uint32_t i = 0; i < dimensions; ++i) {
    const std::uint64_t dimension = cursor.read_u64("a tensor info");
    if (dimension > static_cast<std::uint64_t>(INT64_MAX)) {
      fail(ErrorCode::kInvalidCheckpoint, "{} has a dimension of {}, beyond 63 bits", where, dimension);
    }
    tensor.info.shape.push_back(static_cast<std::int64_t>(dimension));
  }
  std::reverse(tensor.info.shape.begin(), tensor.info.shape.end());
  const std::uint32_t type_number = cursor.read_u32("a tensor info");
  const GgufTensorType* type = gguf_tensor_type(type_number);
  if (type == nullptr || type->block_bytes == 0) {
    fail(ErrorCode::kInvalidCheckpoint,
         "{} has the unsupported type {} ({}); supported are F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, "
         "Q6_K: take another quantization of this model",
         where, type_number, type == nullptr ? "unknown" : type->name);
  }
  tensor.info.dtype = type->name;
  tensor.info.bytes = tensor_bytes(*type, tensor.info, where);
  tensor.offset = cursor.read_u64("a tensor info");
  return tensor;
}

// Gives each tensor its place in the mapping, once the data section's start is known.
std::vector<TensorInfo> place_tensors(const MappedFile& file, std::size_t header_end, std::uint64_t alignment,
                                      std::vector<PlacedTensor> placed) {
  // header_end <= the file's size < 2^63 and alignment <= 2^30: no overflow.
  const std::uint64_t start = (header_end + alignment - 1) / alignment * alignment;
  const std::uint64_t data_bytes = file.size() > start ? file.size() - start : 0;
  std::vector<TensorInfo> tensors;
  tensors.reserve(placed.size());
  for (PlacedTensor& tensor : placed) {
    const std::string where = fmt::format("{}: the tensor {}", file.path().string(), in_quotes(tensor.info.name));
    if (tensor.offset % alignment != 0) {
      fail(ErrorCode::kInvalidCheckpoint,
           "{} starts at {}, not a multiple of the alignment {}; download the file again", where, tensor.offset,
           alignment);
    }
    if (tensor.offset > data_bytes || tensor.info.bytes > data_bytes - tensor.offset) {
      fail(ErrorCode::kInvalidCheckpoint,
           "{} needs {} bytes at data byte {}, but the file holds {}: it is truncated, download the file again", where,
           tensor.info.bytes, tensor.offset, data_bytes);
    }
    tensor.info.data = file.data() + std::min<std::uint64_t>(start + tensor.offset, file.size());
    tensors.push_back(std::move(tensor.info));
  }
  sort_and_refuse_overlaps(file.path(), tensors);
  return tensors;
}

class GgufCheckpoint final : public StoredCheckpoint {
 public:
  explicit GgufCheckpoint(const std::filesystem::path& path) : StoredCheckpoint(path) {
    container_ = Container::kGguf;
    auto file = std::make_unique<MappedFile>(path);
    file_bytes_ = file->size();
    GgufCursor cursor(*file, 0);
    const Counts counts = read_header(cursor);
    metadata_ = std::make_unique<GgufMetadata>(cursor, counts.pairs);
    config_ = metadata_->config();
    refuse_splits();
    const std::uint64_t alignment = read_alignment(*file, config_);

    std::vector<PlacedTensor> placed;
    std::unordered_set<std::string> names;
    for (std::uint64_t i = 0; i < counts.tensors; ++i) {
      placed.push_back(read_tensor_info(cursor));
      if (!names.insert(placed.back().info.name).second) {
        fail(ErrorCode::kInvalidCheckpoint, "{}: the tensor {} is in the file twice; download the file again",
             path.string(), in_quotes(placed.back().info.name));
      }
    }
    std::vector<TensorInfo> tensors = place_tensors(*file, cursor.position(), alignment, std::move(placed));
    add_file(std::move(file), std::move(tensors));
    index_tensors();
  }

  std::vector<std::string> gguf_strings(std::string_view key) const override { return metadata_->strings(key); }
  std::vector<double> gguf_numbers(std::string_view key) const override { return metadata_->numbers(key); }

 private:
  void refuse_splits() const {
    const auto found = config_.find("split.count");
    if (found == config_.end() || !found->is_number() || found->get<double>() <= 1) return;
    fail(ErrorCode::kInvalidCheckpoint,
         "{}: one part of a GGUF file split in {}; join the parts first (llama-gguf-split --merge)", path_.string(),
         found->dump());
  }

  std::unique_ptr<GgufMetadata> metadata_;  // holds a reference to the file that files_ owns
};

}  // namespace

std::shared_ptr<const Checkpoint> open_gguf(const std::filesystem::path& path) {
  return std::make_shared<GgufCheckpoint>(path);
}

}  // namespace tensorfold
