#include "checkpoint/stored_checkpoint.h"

#include <iterator>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/limits.h"
#include "checkpoint/affine.h"
#include "checkpoint/json_file.h"
#include "checkpoint/tensor_table.h"

namespace tensorfold {

void StoredCheckpoint::add_file(std::unique_ptr<MappedFile> file, std::vector<TensorInfo> tensors) {
  files_.push_back(std::move(file));
  add_tensors(std::move(tensors));
}

void StoredCheckpoint::add_tensors(std::vector<TensorInfo> tensors) {
  if (tensors_.size() + tensors.size() > limits::kTensorCountMax) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: more than {} tensors", path_.string(), limits::kTensorCountMax);
  }
  tensors_.insert(tensors_.end(), std::make_move_iterator(tensors.begin()), std::make_move_iterator(tensors.end()));
}

void StoredCheckpoint::index_tensors() {
  by_name_.reserve(tensors_.size());
  for (const TensorInfo& tensor : tensors_) {
    const auto [entry, inserted] = by_name_.emplace(tensor.name, &tensor);
    if (!inserted) {
      fail(ErrorCode::kInvalidCheckpoint, "the tensor {} is in {} and in {}; remove the stale file",
           in_quotes(tensor.name), file_of(*entry->second).string(), file_of(tensor).string());
    }
  }
}

const TensorInfo* StoredCheckpoint::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

const TensorInfo* StoredCheckpoint::find_matrix(std::string_view base) const {
  const TensorInfo* tensor = find(std::string(base) + ".weight");
  return tensor != nullptr ? tensor : find(base);
}

bool StoredCheckpoint::has_weight(std::string_view base) const {
  return find_matrix(base) != nullptr;
}

const std::filesystem::path& StoredCheckpoint::file_of(const TensorInfo& tensor) const {
  for (const auto& file : files_) {
    if (file->contains(tensor.data, tensor.bytes)) return file->path();
  }
  return path_;
}

WeightView StoredCheckpoint::weight(std::string_view base, std::int64_t rows, std::int64_t columns,
                                    std::int64_t experts) const {
  TF_ASSERT(rows > 0 && columns > 0 && experts >= 0);
  const TensorInfo* tensor = find_matrix(base);
  if (tensor == nullptr) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: the tensor {} is missing; the checkpoint is incomplete, download it again",
         path_.string(), in_quotes(std::string(base) + ".weight"));
  }
  std::vector<std::int64_t> shape = {rows};
  if (experts > 0) shape = {experts, rows};
  AffineDeclaration declaration;
  if (container_ != Container::kGguf) {
    declaration = affine_declaration(affine_configuration(config_), base);
    const AffineTensors parts{tensor, find(std::string(base) + ".scales"), find(std::string(base) + ".biases")};
    if (parts.scales != nullptr && parts.biases != nullptr) {
      return affine_view(file_of(*tensor), parts, declaration, shape, columns);
    }
    if (parts.scales != nullptr || parts.biases != nullptr || declaration.rule == AffineRule::kQuantized) {
      fail(ErrorCode::kInvalidCheckpoint, "{}: the quantized tensor {} lacks its {}; convert the model again",
           file_of(*tensor).string(), in_quotes(tensor->name), parts.scales == nullptr ? "scales" : "biases");
    }
  }
  shape.push_back(columns);
  const auto format = matrix_format(tensor->dtype);
  if (!format) {
    fail(ErrorCode::kInvalidCheckpoint,
         "{}: the tensor {} has dtype {}, which is no supported weight format; use a BF16, MLX affine or GGUF "
         "checkpoint",
         file_of(*tensor).string(), in_quotes(tensor->name), tensor->dtype);
  }
  if (tensor->shape != shape) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: the tensor {} has shape {}, expected {}; config and weights don't match",
         file_of(*tensor).string(), in_quotes(tensor->name), shape_text(tensor->shape), shape_text(shape));
  }
  WeightView view;
  view.name = tensor->name;
  view.format = *format;
  view.experts = experts > 0 ? experts : 1;
  view.rows = rows;
  view.columns = columns;
  view.data = tensor->data;
  view.data_bytes = tensor->bytes;
  return view;
}

std::vector<float> StoredCheckpoint::values(std::string_view name, std::int64_t count) const {
  TF_ASSERT(count >= 0);
  const TensorInfo* tensor = find(name);
  if (tensor == nullptr) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: the tensor {} is missing; the checkpoint is incomplete, download it again",
         path_.string(), in_quotes(name));
  }
  const auto format = matrix_format(tensor->dtype);
  if (!format || weight_format_block(*format).elements != 1) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: the tensor {} has dtype {}, expected F32, F16 or BF16",
         file_of(*tensor).string(), in_quotes(name), tensor->dtype);
  }
  const std::uint64_t elements = *element_count(tensor->shape);  // checked when the file was opened
  if (elements != static_cast<std::uint64_t>(count)) {
    fail(ErrorCode::kInvalidCheckpoint,
         "{}: the tensor {} has shape {}, expected {} elements; config and weights don't match",
         file_of(*tensor).string(), in_quotes(name), shape_text(tensor->shape), count);
  }
  std::vector<float> result(elements);
  if (elements == 0) return result;
  WeightView view;
  view.name = tensor->name;
  view.format = *format;
  view.rows = 1;
  view.columns = count;
  view.data = tensor->data;
  view.data_bytes = tensor->bytes;
  decode_row(view, 0, 0, result.data());
  return result;
}

void StoredCheckpoint::drop_pages(const std::byte* data, std::size_t bytes) const {
  for (const auto& file : files_) {
    if (file->contains(data, bytes)) return file->drop_pages(data, bytes);
  }
  TF_ASSERT(!"drop_pages of memory that no file of this checkpoint maps");
}

}  // namespace tensorfold
