// The pairs that wait to be merged, by (rank, position). A long text has few ranks and finds most pairs of one rank
// from left to right, so each rank has a list of its own that is appended to and read in order: a run of a million
// blanks costs a million steps, where one heap over all pairs would move each entry through a million others. What
// comes out of order goes through a heap of its rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <vector>

namespace tensorfold {

struct PendingMerge {
  std::uint32_t rank;
  std::uint32_t position;
  std::int32_t id;
};

class MergeQueue {
 public:
  bool empty() const { return by_rank_.empty(); }

  void push(const PendingMerge& merge) {
    Waiting& waiting = by_rank_[merge.rank];
    const Place place{merge.position, merge.id};
    if (waiting.ordered.empty() || !(waiting.ordered.back() > place)) {
      waiting.ordered.push_back(place);
    } else {
      waiting.others.push(place);
    }
  }

  /// Takes the pair of the lowest rank, the leftmost of them. Not on an empty queue.
  PendingMerge pop() {
    const auto first = by_rank_.begin();
    Waiting& waiting = first->second;
    const bool has_ordered = waiting.next < waiting.ordered.size();
    Place place;
    if (!waiting.others.empty() && (!has_ordered || waiting.ordered[waiting.next] > waiting.others.top())) {
      place = waiting.others.top();
      waiting.others.pop();
    } else {
      place = waiting.ordered[waiting.next++];
    }
    const PendingMerge merge{first->first, place.position, place.id};
    if (waiting.next == waiting.ordered.size() && waiting.others.empty()) by_rank_.erase(first);
    return merge;
  }

 private:
  struct Place {
    std::uint32_t position;
    std::int32_t id;
    bool operator>(const Place& o) const { return position > o.position; }
  };
  struct Waiting {
    std::vector<Place> ordered;
    std::size_t next = 0;  // of `ordered`: those before it have been taken
    std::priority_queue<Place, std::vector<Place>, std::greater<>> others;
  };
  std::map<std::uint32_t, Waiting> by_rank_;
};

}  // namespace tensorfold
