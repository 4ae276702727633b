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
constexpr double kOptimisticGrowth = 0.02;     // of the widest known pass, per further row
constexpr std::uint64_t kTentativePasses = 3;  // a size met less often may have been met in a slow moment
constexpr double kTentativeMost = 2.0;         // times the optimistic guess
constexpr double kSlowMoment = 1.25;           // times the mean: more than that in one pass was another program's time
constexpr std::uint64_t kStaleAfter = 8;       // passes: a measurement that newer ones of smaller passes contradict
}  // namespace

std::size_t CostModel::bucket_of(std::int32_t rows) {
  if (rows <= kExactRows) return static_cast<std::size_t>(rows - 1);
  const int width = std::bit_width(static_cast<std::uint32_t>(rows));  // >= 5
  const std::int32_t quarter = (rows >> (width - 3)) & 3;
  return static_cast<std::size_t>(kExactRows + 4 * (width - 5) + quarter);
}

bool CostModel::is_known(const Bucket& bucket) const {
  return bucket.last != 0 && observations_ - bucket.last < kForgottenAfter;
}

void CostModel::observe(std::int32_t rows, double seconds) {
  TF_ASSERT(rows > 0);
  seconds = std::max(seconds, 0.0);
  Bucket& bucket = buckets_[bucket_of(rows)];
  ++observations_;
  if (!is_known(bucket)) bucket.count = 0;
  ++bucket.count;
  double weight = bucket.count == 1 ? 1.0 : kMeanWeight;
  if (unknown_ == Unknown::kOptimistic && bucket.count > 1 && bucket.count <= kTentativePasses) {
    weight = seconds < bucket.seconds ? 1.0 : 0.0;  // the fastest of the first few
  }
  if (unknown_ == Unknown::kOptimistic && bucket.count > kTentativePasses) {
    seconds = std::min(seconds, kSlowMoment * bucket.seconds);
  }
  bucket.rows += (bucket.count == 1 ? 1.0 : kMeanWeight) * (rows - bucket.rows);
  bucket.seconds += weight * (seconds - bucket.seconds);
  bucket.last = observations_;
  rebuild_curve();
}

/// Passes grow dearer as prompts grow longer, and as the machine has other things to do. A larger pass that was faster
/// than smaller ones have been since, and not once only, was measured in another time.
bool CostModel::is_contradicted(std::size_t index) const {
  const Bucket& large = buckets_[index];
  return std::any_of(buckets_.begin(), buckets_.begin() + static_cast<std::ptrdiff_t>(index), [&](const Bucket& small) {
    return is_known(small) && small.count >= kTentativePasses && small.seconds > large.seconds &&
           small.last > large.last + kStaleAfter;
  });
}

// Disturbances only ever add time: where a larger pass was faster, that is what the smaller one would take at rest.
void CostModel::rebuild_curve() {
  curve_size_ = 0;
  for (std::size_t i = 0; i < kBucketCount; ++i) {
    const Bucket& bucket = buckets_[i];
    if (!is_known(bucket) || is_contradicted(i)) continue;
    Point point{bucket.rows, bucket.seconds};
    if (unknown_ == Unknown::kOptimistic && bucket.count < kTentativePasses && curve_size_ > 0) {
      const Point& below = curve_[curve_size_ - 1];
      const double guess = below.seconds * (1.0 + kOptimisticGrowth * (point.rows - below.rows));
      point.seconds = std::min(point.seconds, kTentativeMost * guess);
    }
    curve_[curve_size_++] = point;
  }
  for (std::size_t i = curve_size_; i-- > 1;) {
    curve_[i - 1].seconds = std::min(curve_[i - 1].seconds, curve_[i].seconds);
  }
}

double CostModel::predict(std::int32_t rows) const {
  if (curve_size_ == 0) return 0.0;
  for (std::size_t i = 0; i < curve_size_; ++i) {
    const Point& point = curve_[i];
    if (rows > point.rows) continue;
    if (i == 0) return point.seconds;
    const Point& below = curve_[i - 1];
    return below.seconds + (point.seconds - below.seconds) * (rows - below.rows) / (point.rows - below.rows);
  }
  const Point& last = curve_[curve_size_ - 1];
  if (unknown_ == Unknown::kOptimistic) return last.seconds * (1.0 + kOptimisticGrowth * (rows - last.rows));
  return last.seconds * rows / last.rows;
}

std::int32_t CostModel::rows_within(double seconds, std::int32_t rows_max) const {
  std::int32_t largest = 0;
  if (curve_size_ > 0) largest = static_cast<std::int32_t>(curve_[curve_size_ - 1].rows + 0.5);
  std::int32_t fails = std::min(rows_max, std::max(kFirstRows, largest * kGrowth)) + 1;
  std::int32_t fits = 1;
  while (fails - fits > 1) {
    const std::int32_t middle = fits + (fails - fits) / 2;
    (predict(middle) <= seconds ? fits : fails) = middle;
  }
  return fits;
}

}  // namespace tensorfold
