// One figure, measured several times. Machines are shared and clocks move: what is reported is the median, and what it
// was taken from.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace tensorfold::measure {

class Samples {
 public:
  void add(double value) { values_.push_back(value); }
  const std::vector<double>& values() const { return values_; }
  /// 0 without samples; the mean of the middle two of an even number.
  double median() const { return median_of(values_); }
  /// The median distance from the median.
  double deviation() const {
    std::vector<double> distances;
    for (const double value : values_) distances.push_back(std::fabs(value - median()));
    return median_of(std::move(distances));
  }

 private:
  static double median_of(std::vector<double> values) {
    if (values.empty()) return 0.0;
    std::sort(values.begin(), values.end());
    const std::size_t middle = values.size() / 2;
    return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2.0;
  }

  std::vector<double> values_;
};

}  // namespace tensorfold::measure
