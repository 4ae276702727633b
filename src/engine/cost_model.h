// What a pass costs, learned from the passes that ran: seconds by number of rows. The scheduler sizes prompt slices
// with it so that no pass holds the other streams up for longer than it may. Costs steer time only, never tokens.
#pragma once

#include <array>
#include <cstdint>

namespace tensorfold {

class CostModel {
 public:
  void observe(std::int32_t rows, double seconds);
  /// Expected seconds of a pass of `rows` rows; 0 while nothing has been measured.
  double predict(std::int32_t rows) const;
  /// Most rows, at most `rows_max`, of a pass expected to take at most `seconds`; at least 1. Grows into the unknown
  /// step by step: at most four times what has been measured.
  std::int32_t rows_within(double seconds, std::int32_t rows_max) const;

 private:
  struct Bucket {       // passes whose row count has the same bit width
    double rows = 0.0;  // running means
    double seconds = 0.0;
    std::uint64_t last = 0;  // observation number; 0: none
  };
  bool is_known(const Bucket& bucket) const;

  std::array<Bucket, 32> buckets_{};
  std::uint64_t observations_ = 0;
};

}  // namespace tensorfold
