// See convert.h.
#include "convert/convert.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>

#include "base/error.h"
#include "base/convert_limits.h"
#include "checkpoint/affine_quantiser.h"
#include "checkpoint/json_file.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/tensor_table.h"

namespace tensorfold {
namespace {

namespace fs = std::filesystem;

/// What a tokenizer, a template or a generation default may be stored in, beside the weights.
constexpr const char* kCompanions[] = {"tokenizer.json",
                                       "tokenizer_config.json",
                                       "generation_config.json",
                                       "chat_template.jinja",
                                       "chat_template.json",
                                       "special_tokens_map.json",
                                       "added_tokens.json",
                                       "vocab.json",
                                       "merges.txt",
                                       "tokenizer.model",
                                       "LICENSE"};

const char* dtype_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "F32";
    case WeightFormat::kF16:
      return "F16";
    default:
      TF_ASSERT(format == WeightFormat::kBF16);
      return "BF16";
  }
}

std::int64_t rows_of(const PlannedMatrix& matrix) {
  std::int64_t rows = 1;
  for (const std::int64_t dimension : matrix.leading) rows *= dimension;
  return rows;
}

std::vector<TensorLayout> layouts(const PlannedMatrix& matrix) {
  const auto with = [&](const char* suffix, const char* dtype, std::int64_t last) {
    TensorLayout layout{matrix.path + suffix, dtype, matrix.leading};
    layout.shape.push_back(last);
    return layout;
  };
  if (!matrix.setting) return {with(".weight", dtype_name(matrix.dense), matrix.columns)};
  const std::int64_t groups = matrix.columns / matrix.setting->group_size;
  return {with(".weight", "U32", matrix.columns * matrix.setting->bits / 32),
          with(".scales", dtype_name(matrix.dense), groups), with(".biases", dtype_name(matrix.dense), groups)};
}

TensorLayout layout(const PlannedVector& vector) {
  return {vector.name, vector.verbatim ? vector.source->dtype : dtype_name(vector.format), vector.shape};
}

/// The source rows of a matrix one after the other.
class RowReader {
 public:
  explicit RowReader(const PlannedMatrix& matrix) : matrix_(matrix) {}
  void next(float* out) {
    while (row_ == matrix_.sources[source_].row_count) {
      ++source_;
      row_ = 0;
    }
    const RowSource& source = matrix_.sources[source_];
    std::int64_t row = source.first_row + row_++;
    if (source.interleaved_dim > 0) {
      const std::int64_t head = row / source.interleaved_dim, inside = row % source.interleaved_dim;
      const std::int64_t half = source.interleaved_dim / 2;
      row = head * source.interleaved_dim + (inside % half) * 2 + inside / half;
    }
    decode_row(source.view, source.expert, row, out);
  }

 private:
  const PlannedMatrix& matrix_;
  std::size_t source_ = 0;
  std::int64_t row_ = 0;
};

class ErrorSums {
 public:
  void add(const float* source, const float* seen, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      const double difference = static_cast<double>(seen[i]) - static_cast<double>(source[i]);
      squares_ += difference * difference;
      source_squares_ += static_cast<double>(source[i]) * static_cast<double>(source[i]);
      largest_ = std::max(largest_, std::fabs(difference));
    }
    elements_ += count;
  }
  MatrixError result(const PlannedMatrix& matrix) const {
    MatrixError error;
    error.path = matrix.path;
    error.format = matrix.setting ? fmt::format("{}-bit, group {}", matrix.setting->bits, matrix.setting->group_size)
                                  : weight_format_name(matrix.dense);
    error.quantised = matrix.setting.has_value();
    error.relative_rms = source_squares_ > 0.0 ? std::sqrt(squares_ / source_squares_) : 0.0;
    error.largest = largest_;
    error.elements = elements_;
    return error;
  }

 private:
  double squares_ = 0.0, source_squares_ = 0.0, largest_ = 0.0;
  std::int64_t elements_ = 0;
};

void refuse_unfinite(const PlannedMatrix& matrix, std::int64_t row, const std::vector<float>& values) {
  for (const float value : values) {
    if (std::isfinite(value)) continue;
    fail(ErrorCode::kInvalidCheckpoint, "{}: row {} holds {}; the source is damaged", in_quotes(matrix.path), row,
         value);
  }
}

/// One output part of a matrix, gathered row by row and written in blocks.
class Part {
 public:
  Part(SafetensorsWriter& writer, std::string name, std::size_t row_bytes)
      : writer_(writer), name_(std::move(name)), row_bytes_(row_bytes) {}
  std::byte* next_row() {
    if (data_.size() >= limits::kConvertBlockBytes) flush();
    data_.resize(data_.size() + row_bytes_);
    return data_.data() + data_.size() - row_bytes_;
  }
  void flush() {
    writer_.write(name_, offset_, data_.data(), data_.size());
    offset_ += data_.size();
    data_.clear();
  }

 private:
  SafetensorsWriter& writer_;
  std::string name_;
  std::size_t row_bytes_;
  std::uint64_t offset_ = 0;
  std::vector<std::byte> data_;
};

MatrixError write_quantised(const PlannedMatrix& matrix, SafetensorsWriter& writer) {
  AffineQuantiser quantiser(*matrix.setting, matrix.dense, matrix.columns);
  Part codes(writer, matrix.path + ".weight", quantiser.code_bytes());
  Part scales(writer, matrix.path + ".scales", quantiser.scale_bytes());
  Part biases(writer, matrix.path + ".biases", quantiser.scale_bytes());
  RowReader reader(matrix);
  ErrorSums sums;
  std::vector<float> values(static_cast<std::size_t>(matrix.columns)), seen(values.size());
  for (std::int64_t row = 0, count = rows_of(matrix); row < count; ++row) {
    reader.next(values.data());
    refuse_unfinite(matrix, row, values);
    std::byte* code = codes.next_row();
    std::byte* scale = scales.next_row();
    quantiser.encode(values.data(), code, scale, biases.next_row(), seen.data());
    sums.add(values.data(), seen.data(), matrix.columns);
  }
  codes.flush();
  scales.flush();
  biases.flush();
  return sums.result(matrix);
}

MatrixError write_dense(const PlannedMatrix& matrix, SafetensorsWriter& writer) {
  const auto element = static_cast<std::size_t>(weight_format_block(matrix.dense).bytes);
  Part part(writer, matrix.path + ".weight", static_cast<std::size_t>(matrix.columns) * element);
  RowReader reader(matrix);
  ErrorSums sums;
  std::vector<float> values(static_cast<std::size_t>(matrix.columns)), seen(values.size());
  for (std::int64_t row = 0, count = rows_of(matrix); row < count; ++row) {
    reader.next(values.data());
    std::byte* out = part.next_row();
    for (std::size_t i = 0; i < values.size(); ++i) store_scalar(matrix.dense, values[i], out + i * element);
    WeightView view;
    view.format = matrix.dense;
    view.rows = 1;
    view.columns = matrix.columns;
    view.data = out;
    view.data_bytes = values.size() * element;
    decode_row(view, 0, 0, seen.data());
    sums.add(values.data(), seen.data(), matrix.columns);
  }
  part.flush();
  return sums.result(matrix);
}

void write_vector(const Checkpoint& checkpoint, const PlannedVector& vector, SafetensorsWriter& writer) {
  if (vector.verbatim) {
    writer.write(vector.name, 0, vector.source->data, vector.source->bytes);
    return;
  }
  auto values = checkpoint.values(vector.source->name, static_cast<std::int64_t>(*element_count(vector.shape)));
  const auto element = static_cast<std::size_t>(weight_format_block(vector.format).bytes);
  std::vector<std::byte> data(values.size() * element);
  for (std::size_t i = 0; i < values.size(); ++i)
    store_scalar(vector.format, values[i] + vector.added, data.data() + i * element);
  writer.write(vector.name, 0, data.data(), data.size());
}

/// Which file each planned tensor goes to: matrices and vectors in the plan's order, a new file where one is full.
struct Shard {
  std::vector<const PlannedMatrix*> matrices;
  std::vector<const PlannedVector*> vectors;
  std::uint64_t bytes = 0;
};

std::vector<Shard> split(const ConversionPlan& plan) {
  std::vector<Shard> shards(1);
  const auto room_for = [&](std::uint64_t bytes) -> Shard& {
    if (shards.back().bytes > 0 && shards.back().bytes + bytes > limits::kConvertShardBytesMax) shards.emplace_back();
    shards.back().bytes += bytes;
    return shards.back();
  };
  for (const PlannedMatrix& matrix : plan.matrices) {
    std::uint64_t bytes = 0;
    for (const TensorLayout& each : layouts(matrix)) bytes += tensor_bytes(each);
    room_for(bytes).matrices.push_back(&matrix);
  }
  for (const PlannedVector& vector : plan.vectors) room_for(tensor_bytes(layout(vector))).vectors.push_back(&vector);
  return shards;
}

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text << std::flush;
  if (!file) fail(ErrorCode::kResourceExhausted, "{}: writing failed", path.string());
}

/// A folder under construction; it goes away with an error.
class NewFolder {
 public:
  explicit NewFolder(const fs::path& out) : out_(out), partial_(out.string() + ".partial") {
    std::error_code error;
    fs::remove_all(partial_, error);  // of a run that was killed
    if (!fs::create_directories(partial_, error)) {
      fail(ErrorCode::kInvalidArgument, "{}: can't be made: {}", partial_.string(), error.message());
    }
  }
  ~NewFolder() {
    std::error_code ignored;
    if (!done_) fs::remove_all(partial_, ignored);
  }
  const fs::path& path() const { return partial_; }
  void finish() {
    std::error_code error;
    fs::rename(partial_, out_, error);
    if (error) fail(ErrorCode::kInvalidArgument, "{}: can't be made: {}", out_.string(), error.message());
    done_ = true;
  }

 private:
  fs::path out_, partial_;
  bool done_ = false;
};

class Conversion {
 public:
  Conversion(const ConversionPlan& plan, const fs::path& folder,
             const std::function<void(double, const std::string&)>& progress)
      : plan_(plan), folder_(folder), progress_(progress) {
    for (const PlannedMatrix& matrix : plan.matrices)
      total_ += static_cast<double>(rows_of(matrix)) * static_cast<double>(matrix.columns);
  }

  void write_weights(ConversionReport& report) {
    const auto shards = split(plan_);
    nlohmann::json where = nlohmann::json::object();
    for (std::size_t index = 0; index < shards.size(); ++index) {
      const std::string name = shards.size() == 1
                                   ? "model.safetensors"
                                   : fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, shards.size());
      report.bytes_after += write_shard(shards[index], name, where, report);
    }
    if (shards.size() > 1) {
      const nlohmann::json table{{"metadata", {{"total_size", report.bytes_after}}}, {"weight_map", where}};
      write_text(folder_ / "model.safetensors.index.json", table.dump(2) + "\n");
    }
  }

 private:
  std::uint64_t write_shard(const Shard& shard, const std::string& name, nlohmann::json& where,
                            ConversionReport& report) {
    std::vector<TensorLayout> tensors;
    for (const PlannedMatrix* matrix : shard.matrices) {
      for (TensorLayout& each : layouts(*matrix)) tensors.push_back(std::move(each));
    }
    for (const PlannedVector* vector : shard.vectors) tensors.push_back(layout(*vector));
    for (const TensorLayout& each : tensors) where[each.name] = name;
    SafetensorsWriter writer(folder_ / name, std::move(tensors), "mlx");
    for (const PlannedMatrix* matrix : shard.matrices) {
      if (progress_) progress_(total_ > 0.0 ? done_ / total_ : 0.0, matrix->path);
      report.matrices.push_back(matrix->setting ? write_quantised(*matrix, writer) : write_dense(*matrix, writer));
      done_ += static_cast<double>(report.matrices.back().elements);
      for (const RowSource& source : matrix->sources)
        plan_.checkpoint->drop_pages(source.view.data, source.view.data_bytes);
    }
    for (const PlannedVector* vector : shard.vectors) write_vector(*plan_.checkpoint, *vector, writer);
    report.vectors += static_cast<std::int64_t>(shard.vectors.size());
    writer.finish();
    return writer.file_bytes();
  }

  const ConversionPlan& plan_;
  const fs::path& folder_;
  const std::function<void(double, const std::string&)>& progress_;
  double total_ = 0.0, done_ = 0.0;
};

void copy_companions(const Checkpoint& checkpoint, const fs::path& folder, ConversionReport& report) {
  if (checkpoint.container() == Container::kGguf) return;
  for (const char* name : kCompanions) {
    std::error_code error;
    if (!fs::is_regular_file(checkpoint.path() / name, error)) continue;
    fs::copy_file(checkpoint.path() / name, folder / name, error);
    if (error) fail(ErrorCode::kResourceExhausted, "{}: copying failed: {}", (folder / name).string(), error.message());
    report.copied_files.emplace_back(name);
  }
}

}  // namespace

void check_output_folder(const fs::path& out) {
  std::error_code error;
  if (out.empty() || fs::exists(fs::symlink_status(out, error))) {
    fail(ErrorCode::kInvalidArgument, "{}: exists already; name a new folder, nothing is overwritten", out.string());
  }
  const fs::path parent = out.has_parent_path() ? out.parent_path() : fs::path(".");
  if (!fs::is_directory(parent, error)) {
    fail(ErrorCode::kInvalidArgument, "{}: there is no folder {} to make it in", out.string(), parent.string());
  }
}

ConversionReport convert(const ConversionPlan& plan, const fs::path& out,
                         const std::function<void(double, const std::string&)>& progress) {
  check_output_folder(out);
  NewFolder folder(out);
  ConversionReport report;
  report.bytes_before = plan.checkpoint->file_bytes();
  Conversion(plan, folder.path(), progress).write_weights(report);
  copy_companions(*plan.checkpoint, folder.path(), report);
  for (const auto& [name, text] : plan.files) {
    write_text(folder.path() / name, text);
    report.copied_files.push_back(name);
  }
  write_text(folder.path() / "config.json", plan.config.dump(2) + "\n");
  folder.finish();
  return report;
}

}  // namespace tensorfold
