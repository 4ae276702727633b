// Pass costs (see cost_model.h).
#include "engine/cost_model.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace tensorfold {
namespace {
constexpr double kMeanWeight = 0.3;
constexpr std::uint64_t kForgottenAfter =
    256;                                 // a size not met for so long is tried afresh: its cost may be an old accident
constexpr std::int32_t kFirstRows = 32;  // before anything is known
constexpr std::int32_t kGrowth = 4;
}  // namespace

bool CostModel::is_known(const Bucket& bucket) const {
  return bucket.last != 0 && observations_ - bucket.last < kForgottenAfter;
}

void CostModel::observe(std::int32_t rows, double seconds) {
  TF_ASSERT(rows > 0);
  Bucket& bucket = buckets_[static_cast<std::size_t>(std::bit_width(static_cast<std::uint32_t>(rows)) - 1)];
  ++observations_;
  const double weight = is_known(bucket) ? kMeanWeight : 1.0;
  bucket.rows += weight * (rows - bucket.rows);
  bucket.seconds += weight * (std::max(seconds, 0.0) - bucket.seconds);
  bucket.last = observations_;
}

double CostModel::predict(std::int32_t rows) const {
  double below_rows = 0.0, below_seconds = 0.0;
  for (const Bucket& bucket : buckets_) {
    if (!is_known(bucket)) continue;
    const double seconds = std::max(bucket.seconds, below_seconds);  // more rows never count as cheaper
    if (rows <= bucket.rows) {
      if (below_rows == 0.0 || bucket.rows <= below_rows) return seconds;
      return below_seconds + (seconds - below_seconds) * (rows - below_rows) / (bucket.rows - below_rows);
    }
    below_rows = bucket.rows;
    below_seconds = seconds;
  }
  return below_rows == 0.0 ? 0.0 : below_seconds * rows / below_rows;
}

std::int32_t CostModel::rows_within(double seconds, std::int32_t rows_max) const {
  std::int32_t largest = 0;
  for (const Bucket& bucket : buckets_) {
    if (is_known(bucket)) largest = std::max(largest, static_cast<std::int32_t>(bucket.rows + 0.5));
  }
  std::int32_t fails = std::min(rows_max, std::max(kFirstRows, largest * kGrowth)) + 1;
  std::int32_t fits = 1;
  while (fails - fits > 1) {
    const std::int32_t middle = fits + (fails - fits) / 2;
    (predict(middle) <= seconds ? fits : fails) = middle;
  }
  return fits;
}

}  // namespace tensorfold
