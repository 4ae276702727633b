// What a pass costs, learned from the passes that ran: seconds by number of rows. The scheduler sizes prompt slices
// with it so that no pass holds the other streams up for longer than it may, and draft windows so that they pay. Costs
// steer time only, never tokens.
#pragma once

#include <array>
#include <cstdint>

namespace tensorfold {

class CostModel {
 public:
  /// What a pass larger than any that was measured is taken to cost.
  enum class Unknown {
    kProportional,  // every row as much as those measured: never too little
    kOptimistic,    // hardly more than the largest measured: so that it is tried, and then known
  };
  explicit CostModel(Unknown unknown = Unknown::kProportional) : unknown_(unknown) {}

  void observe(std::int32_t rows, double seconds);
  /// Expected seconds of a pass of `rows` rows; 0 while nothing has been measured.
  double predict(std::int32_t rows) const;
  /// Most rows, at most `rows_max`, of a pass expected to take at most `seconds`; at least 1. Grows into the unknown
  /// step by step: at most four times what has been measured.
  std::int32_t rows_within(double seconds, std::int32_t rows_max) const;

 private:
  // Small passes are kept apart, larger ones by quarters of an octave: a kernel's steps lie at small powers of two.
  static constexpr std::int32_t kExactRows = 16;
  static constexpr std::size_t kBucketCount = kExactRows + 4 * 27;
  struct Bucket {
    double rows = 0.0;  // running means
    double seconds = 0.0;
    std::uint64_t count = 0;
    std::uint64_t last = 0;  // observation number; 0: none
  };
  struct Point {
    double rows = 0.0, seconds = 0.0;
  };
  static std::size_t bucket_of(std::int32_t rows);
  bool is_known(const Bucket& bucket) const;
  bool is_contradicted(std::size_t index) const;
  void rebuild_curve();

  Unknown unknown_;
  std::array<Bucket, kBucketCount> buckets_{};
  std::array<Point, kBucketCount> curve_{};  // ascending in both
  std::size_t curve_size_ = 0;
  std::uint64_t observations_ = 0;
};

}  // namespace tensorfold
