// Linear layers and embedding lookup over weights that were decoded to fp32 at load: memory is no concern of a
// reference, and one decoded copy keeps the loops free of formats.
#include "base/error.h"
#include "ops/reference/reference_operations.h"

namespace tensorfold::ops {
namespace {

void check_source(const LinearSource& source) {
  TF_ASSERT(!source.parts.empty());
  TF_ASSERT(source.row_orders.empty() || source.row_orders.size() == source.parts.size());
  std::int64_t rows = 0;
  for (std::size_t part = 0; part < source.parts.size(); ++part) {
    const WeightView& view = source.parts[part];
    TF_ASSERT(view.columns == source.parts[0].columns && view.experts == source.parts[0].experts);
    TF_ASSERT(view.rows > 0 && view.columns > 0 && view.experts > 0);
    if (!source.row_orders.empty() && !source.row_orders[part].empty()) {
      TF_ASSERT(static_cast<std::int64_t>(source.row_orders[part].size()) == view.rows);
      for (const std::int32_t stored : source.row_orders[part]) TF_ASSERT(stored >= 0 && stored < view.rows);
    }
    rows += view.rows;
  }
  TF_ASSERT(source.bias.empty() || static_cast<std::int64_t>(source.bias.size()) == rows);
  TF_ASSERT(source.bias.empty() || source.parts[0].experts == 1);
}

}  // namespace

std::unique_ptr<Linear> ReferenceBackend::load_linear(const LinearSource& source) {
  check_source(source);
  auto linear = std::make_unique<ReferenceLinear>();
  linear->columns_ = source.parts[0].columns;
  linear->experts_ = source.parts[0].experts;
  for (const WeightView& part : source.parts) linear->rows_ += part.rows;
  linear->bias_ = source.bias;
  linear->weights_.resize(static_cast<std::size_t>(linear->experts_ * linear->rows_ * linear->columns_));

  float* out = linear->weights_.data();
  for (std::int64_t expert = 0; expert < linear->experts_; ++expert) {
    for (std::size_t part = 0; part < source.parts.size(); ++part) {
      const WeightView& view = source.parts[part];
      const bool reordered = !source.row_orders.empty() && !source.row_orders[part].empty();
      for (std::int64_t row = 0; row < view.rows; ++row) {
        decode_row(view, expert, reordered ? source.row_orders[part][static_cast<std::size_t>(row)] : row, out);
        out += view.columns;
      }
    }
  }
  if (rounding_ == Rounding::kBackend) {
    for (float& weight : linear->weights_) weight = round_point(weight);
  }
  return linear;
}

void ReferenceBackend::linear(const LinearParams& params) {
  const auto& weight = static_cast<const ReferenceLinear&>(*params.weight);
  TF_ASSERT(weight.experts() == 1);
  TF_ASSERT(params.rows == 0 || params.y_stride >= weight.rows());
  const std::int64_t columns = weight.columns();
  const float* x = values_of(params.x);
  // One item an output: a weight row is read once and used for all rows of the call.
  pool_.parallel_for(params.rows == 0 ? 0 : weight.rows(), [&](std::int64_t output, int) {
    for (std::int64_t row = 0; row < params.rows; ++row) {
      const std::int64_t source_row = params.row_index != nullptr ? params.row_index[row] : row;
      double sum = dot(weight.row(0, output), x + source_row * columns, columns);
      if (!weight.bias_.empty()) sum += static_cast<double>(weight.bias_[static_cast<std::size_t>(output)]);
      float& y = params.y[row * params.y_stride + output];
      y = static_cast<float>(params.accumulate ? static_cast<double>(y) + sum : sum);
    }
  });
}

void ReferenceBackend::embed(const EmbedParams& params) {
  const auto& table = static_cast<const ReferenceLinear&>(*params.table);
  TF_ASSERT(table.experts() == 1);
  const std::int64_t columns = table.columns();
  pool_.parallel_for(params.rows, [&](std::int64_t row, int) {
    const std::int32_t token = params.tokens[row];
    TF_ASSERT(token >= 0 && token < table.rows());
    const float* source = table.row(0, token);
    for (std::int64_t i = 0; i < columns; ++i) params.out[row * columns + i] = source[i] * params.scale;
  });
}

}  // namespace tensorfold::ops
