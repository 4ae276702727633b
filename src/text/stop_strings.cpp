// StopStringMatcher. The held text is shorter than the longest stop string, so searching it again is cheap.
#include "text/stop_strings.h"

#include <algorithm>

#include "base/error.h"

namespace tensorfold {
namespace {

/// Length of the longest end of `text` that begins `stop` without being all of it.
std::size_t partial_match(std::string_view text, std::string_view stop) {
  for (std::size_t length = std::min(text.size(), stop.size() - 1); length > 0; --length) {
    if (text.ends_with(stop.substr(0, length))) return length;
  }
  return 0;
}

}  // namespace

StopStringMatcher::StopStringMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

std::string StopStringMatcher::push(std::string_view text) {
  if (matched()) return {};
  held_ += text;
  std::size_t position = std::string::npos;
  int winner = -1;
  std::size_t safe = held_.size();  // before it no match can begin any more
  for (std::size_t i = 0; i < stops_.size(); ++i) {
    const std::size_t found = held_.find(stops_[i]);
    if (found < position) {  // equal positions: the request's order
      position = found;
      winner = static_cast<int>(i);
    }
    safe = std::min(safe, held_.size() - partial_match(held_, stops_[i]));
  }
  // A longer stop string that began earlier may still complete; it wins then, whatever the pieces are.
  if (winner >= 0 && position <= safe) {
    const bool undecided = std::any_of(stops_.begin(), stops_.begin() + winner, [&](const std::string& stop) {
      const std::string_view rest = std::string_view(held_).substr(position);
      return rest.size() < stop.size() && std::string_view(stop).starts_with(rest);
    });
    if (!undecided) {
      matched_ = winner;
      std::string shown = held_.substr(0, position);
      held_.clear();
      return shown;
    }
  }
  safe = std::min(safe, position);
  std::string shown = held_.substr(0, safe);
  held_.erase(0, safe);
  return shown;
}

std::string StopStringMatcher::finish() {
  if (matched()) return {};
  std::size_t position = std::string::npos;
  for (std::size_t i = 0; i < stops_.size(); ++i) {
    const std::size_t found = held_.find(stops_[i]);
    if (found >= position) continue;
    position = found;
    matched_ = static_cast<int>(i);
  }
  std::string shown = held_.substr(0, position);
  held_.clear();
  return shown;
}

}  // namespace tensorfold
