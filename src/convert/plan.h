// What a conversion will write: every output tensor with the source rows it is made of, and the new config.json.
// Decided and checked in full from names and shapes alone, before a byte is computed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "convert/rules.h"

namespace tensorfold {

/// Rows of a stored matrix, in output order: expert `expert` of `view`, rows [first_row, first_row + row_count). Rows
/// of llama's queries and keys in GGUF files alternate between the halves of a head of `interleaved_dim` rows; 0: in
/// order.
struct RowSource {
  WeightView view;
  std::int64_t expert = 0;
  std::int64_t first_row = 0;
  std::int64_t row_count = 0;
  std::int64_t interleaved_dim = 0;
};

struct PlannedMatrix {
  std::string path;                   // in the output, without ".weight"
  std::vector<std::int64_t> leading;  // [rows] or [experts, rows]
  std::int64_t columns = 0;
  std::vector<RowSource> sources;            // leading rows in all
  std::optional<AffineSetting> setting;      // none: stored dense
  WeightFormat dense = WeightFormat::kBF16;  // of scales and biases, or of the matrix itself
};

/// A tensor that is copied or nearly so.
struct PlannedVector {
  std::string name;
  const TensorInfo* source = nullptr;
  std::vector<std::int64_t> shape;
  float added = 0.0f;                         // to every value (norms whose 1 is folded in, or taken out)
  WeightFormat format = WeightFormat::kBF16;  // to be stored in; the source's own where nothing changes
  bool verbatim = false;                      // any dtype, byte for byte
};

struct ConversionPlan {
  std::shared_ptr<const Checkpoint> checkpoint;
  std::vector<PlannedMatrix> matrices;
  std::vector<PlannedVector> vectors;
  std::vector<std::string> skipped;  // tensors of the source that don't belong in the result
  nlohmann::json config;
  std::map<std::string, std::string> files;  // further files to write (a GGUF file's tokenizer): name -> text
};

/// Throws Error(kUnsupported) for a family that isn't served or a checkpoint that is quantised already, and
/// Error(kInvalidArgument) for a rule that no matrix meets.
ConversionPlan plan_conversion(std::shared_ptr<const Checkpoint> checkpoint, QuantisationRules& rules);

}  // namespace tensorfold
