// What the tests of drafters share: a model with several lanes whose pages and slots are laid out by hand.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <map>
#include <span>

#include "checkpoint/checkpoint.h"
#include "model/load.h"
#include "support/golden_case.h"
#include "support/model_backend.h"
#include "support/plan.h"

namespace tensorfold::test {

inline constexpr std::int32_t kLanePages = 4;  // of each group, for each lane

/// A loaded golden model with `lane_count` lanes: lane i has slot i + 1 and pages of its own.
struct LanedModel {
  LanedModel(const GoldenCase& golden, std::unique_ptr<ops::Backend> backend, std::int32_t lane_count,
             const LoadOptions& options = {})
      : model(load_language_model(Checkpoint::open(golden.model), std::move(backend), options)) {
    const auto& groups = model->facts().groups;
    model->allocate_caches(std::vector<std::int32_t>(groups.size(), 1 + kLanePages * lane_count), lane_count + 1, 16);
    for (std::int32_t lane = 0; lane < lane_count; ++lane) {
      std::vector<PageTable> tables;
      for (const auto& group : groups) {
        PageTable table(group.kind == CacheKind::kRecurrent ? 0 : kLanePages);
        std::iota(table.begin(), table.end(), 1 + kLanePages * lane);
        tables.push_back(std::move(table));
      }
      pages.push_back(std::move(tables));
    }
  }

  /// Adds a lane's rows to a plan; `flags` for every row.
  void add(RoundPlan& plan, std::int32_t lane, std::span<const std::int32_t> tokens, std::int32_t position,
           std::uint32_t flags) const {
    PlanLane each;
    each.slot = lane + 1;
    each.first_row = static_cast<std::int32_t>(plan.rows.size());
    each.row_count = static_cast<std::int32_t>(tokens.size());
    each.position = position;
    each.pages = pages[static_cast<std::size_t>(lane)];
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      PlanRow row;
      row.token = tokens[i];
      row.sequence_index = position + static_cast<std::int32_t>(i);
      row.rope_position.fill(row.sequence_index);
      row.parent_row = i == 0 ? -1 : static_cast<std::int32_t>(plan.rows.size()) - 1;
      row.lane = static_cast<std::int32_t>(plan.lanes.size());
      row.flags = flags;
      plan.rows.push_back(row);
    }
    plan.lanes.push_back(std::move(each));
  }

  /// The absorb of rows [first, first + count) of a lane, whose row 0 is pass row `pass_row` and position `position`.
  AbsorbLane absorb_lane(std::int32_t lane, std::int32_t pass_row, std::int32_t position,
                         std::span<const std::int32_t> next_tokens, bool wants_result) const {
    AbsorbLane each;
    each.slot = lane + 1;
    each.pages = &pages[static_cast<std::size_t>(lane)];
    each.wants_result = wants_result;
    for (std::size_t i = 0; i < next_tokens.size(); ++i) {
      const auto offset = static_cast<std::int32_t>(i);
      each.rows.push_back({pass_row + offset, position + offset, next_tokens[i]});
    }
    return each;
  }

  std::unique_ptr<LanguageModel> model;
  std::vector<std::vector<PageTable>> pages;  // [lane][group]
};

inline float largest(std::span<const float> values) {
  float result = 0.0f;
  for (const float value : values) result = std::max(result, std::abs(value));
  return result;
}

inline float largest_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  float result = 0.0f;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const float difference = std::abs(a[i] - b[i]);
    if (!(difference <= result)) result = difference;
  }
  return result;
}

inline double root_mean_square(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += difference * difference;
  }
  return std::sqrt(sum / static_cast<double>(a.size()));
}

inline testing::AssertionResult same_bits(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return testing::AssertionFailure() << "sizes " << a.size() << " and " << b.size();
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) {
      return testing::AssertionFailure() << "element " << i << ": " << a[i] << " and " << b[i];
    }
  }
  return testing::AssertionSuccess();
}

/// Safetensors files that a test changes, read and written without src/checkpoint.
struct StoredTensor {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;
};

inline std::map<std::string, StoredTensor> read_safetensors_plainly(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string file((std::istreambuf_iterator<char>(in)), {});
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  std::map<std::string, StoredTensor> result;
  const auto header = nlohmann::json::parse(file.substr(8, header_bytes));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto at = entry["data_offsets"].get<std::vector<std::uint64_t>>();
    result[name] = {entry["dtype"], entry["shape"], file.substr(8 + header_bytes + at[0], at[1] - at[0])};
  }
  return result;
}

inline void write_safetensors_plainly(const std::filesystem::path& path,
                                      const std::map<std::string, StoredTensor>& tensors) {
  nlohmann::json header;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  const std::string text = header.dump();
  const std::uint64_t length = text.size();
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&length), sizeof(length));
  out << text << data;
}

inline std::unique_ptr<ops::Backend> exact_backend() {
  return ops::make_reference_backend(ops::Rounding::kNone);
}
}  // namespace tensorfold::test
