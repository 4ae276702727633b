// A progress line on a terminal's stderr that redraws itself and leaves nothing behind; silent elsewhere.
#pragma once

#include <chrono>
#include <string>

namespace tensorfold::cli {

class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine() { clear(); }
  void show(double fraction, const std::string& what);
  void clear();

 private:
  bool terminal_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point last_drawn_{};
};

}  // namespace tensorfold::cli
