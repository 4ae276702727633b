// A checkpoint on disk as named, checked tensors in mapped memory: one interface over Hugging Face / MLX directories
// (safetensors) and GGUF files. It knows containers and weight formats, and no model family: names are the file's own,
// and what a tensor should be is checked by whoever asks for it (model/). Everything a file says is hostile until
// checked here: sizes are verified before they are multiplied, allocated or mapped.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/weight_format.h"

namespace tensorfold {

enum class Container { kHuggingFace, kMlx, kGguf };

struct TensorInfo {
  std::string name;
  std::string dtype;                // the file's own spelling: "BF16", "U32", "Q4_K", ...
  std::vector<std::int64_t> shape;  // slowest dimension first (GGUF's are reversed on reading)
  const std::byte* data = nullptr;  // mapped; may be unaligned
  std::size_t bytes = 0;
};

class Checkpoint {
 public:
  /// Opens a directory with config.json and safetensors, or one .gguf file. Everything is checked before this returns:
  /// headers, offsets, overlaps, shards, dtypes. Throws Error(kInvalidCheckpoint | kNotFound) that names file and
  /// tensor.
  static std::shared_ptr<const Checkpoint> open(const std::filesystem::path& path);
  /// Opens one safetensors file that lies beside a checkpoint (an MTP head) as a checkpoint of its own, with an empty
  /// config(): the shapes alone say how its matrices are quantised. Same checks and errors.
  static std::shared_ptr<const Checkpoint> open_side_file(const std::filesystem::path& path);
  virtual ~Checkpoint() = default;

  virtual Container container() const = 0;
  virtual const std::filesystem::path& path() const = 0;
  /// config.json; for GGUF the metadata as one flat object ("llama.block_count": 30, arrays as JSON arrays; the
  /// tokenizer's large arrays are left out and read through gguf_strings()/gguf_numbers()).
  virtual const nlohmann::json& config() const = 0;
  /// generation_config.json, or an empty object.
  virtual const nlohmann::json& generation_config() const = 0;
  virtual const std::vector<TensorInfo>& tensors() const = 0;
  virtual const TensorInfo* find(std::string_view name) const = 0;
  /// Total bytes of the files, links followed.
  virtual std::uint64_t file_bytes() const = 0;

  /// The matrix stored under `base` + ".weight" (or under `base` itself, as stacked experts are): dense, MLX affine
  /// when `base`.scales exists (bits and group from the shapes, checked against config "quantization"), or a GGUF block
  /// format. `rows`, `columns` and `experts` are what the caller expects; any other shape is refused with both shapes.
  /// `experts` 0 = a plain 2-D matrix. Throws Error(kInvalidCheckpoint) with the tensor's name.
  virtual WeightView weight(std::string_view base, std::int64_t rows, std::int64_t columns,
                            std::int64_t experts = 0) const = 0;
  virtual bool has_weight(std::string_view base) const = 0;

  /// A small dense tensor (norms, biases, A_log, convolutions) as fp32, row-major, of exactly `count` elements.
  virtual std::vector<float> values(std::string_view name, std::int64_t count) const = 0;

  /// GGUF arrays that config() leaves out: "tokenizer.ggml.tokens", ".merges" / ".scores", ".token_type". Empty when
  /// the file has no such array (or isn't GGUF); throws when its elements are of another kind.
  virtual std::vector<std::string> gguf_strings(std::string_view key) const = 0;
  virtual std::vector<double> gguf_numbers(std::string_view key) const = 0;

  /// Tells the kernel that the mapped pages of a tensor aren't needed any more (after packing). Never invalidates
  /// reads.
  virtual void drop_pages(const std::byte* data, std::size_t bytes) const = 0;
};

/// The installed SIGBUS handler ends the process with a clear message that names the mapped file when a checkpoint is
/// truncated while it is in use. Call once at start-up.
void install_mapped_file_guard();

}  // namespace tensorfold
