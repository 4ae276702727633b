// One figure, measured several times. Machines are shared and clocks move: what is reported is the median, and what it
// was taken from.
#pragma once

#include <algorithm>
#include <vector>

namespace tensorfold::measure {

class Samples {
 public:
  void add(double value) { values_.push_back(value); }
  const std::vector<double>& values() const { return values_; }
  /// 0 without samples; the mean of the middle two of an even number.
  double median() const {
    if (values_.empty()) return 0.0;
    std::vector<double> sorted = values_;
    std::sort(sorted.begin(), sorted.end());
    const std::size_t middle = sorted.size() / 2;
    return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2.0;
  }

 private:
  std::vector<double> values_;
};

}  // namespace tensorfold::measure
