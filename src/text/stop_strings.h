// Finds stop strings in a reply as it grows: text that could still begin a match is held back, so that nothing of a
// stop string ever reaches the client. The outcome doesn't depend on how the text is cut into pieces.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tensorfold {

class StopStringMatcher {
 public:
  /// `stops` in the request's order; empty ones are ignored.
  explicit StopStringMatcher(std::vector<std::string> stops);

  /// Adds text and returns what may be shown. After a match nothing is returned any more.
  std::string push(std::string_view text);
  /// The reply ended: what was held back, unless a stop string matched.
  std::string finish();

  bool matched() const { return matched_ >= 0; }
  /// The stop string that matched.
  const std::string& stop() const { return stops_[static_cast<std::size_t>(matched_)]; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  int matched_ = -1;
};

}  // namespace tensorfold
