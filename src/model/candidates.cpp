// See candidates.h. A chunk of logits is looked at only when its largest beats the worst kept so far: a scan of maxima
// that the compiler vectorises, over vocabularies of hundreds of thousands.
#include "model/candidates.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace tensorfold {
namespace {

constexpr std::int64_t kChunk = 256;

float chunk_maximum(const float* logits, std::int64_t count) {
  constexpr int kLanes = 16;
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, -std::numeric_limits<float>::infinity());
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = logits[i + lane] > lanes[lane] ? logits[i + lane] : lanes[lane];
    }
  }
  for (; i < count; ++i) lanes[0] = logits[i] > lanes[0] ? logits[i] : lanes[0];
  return *std::max_element(lanes, lanes + kLanes);
}

}  // namespace

void best_candidates(const float* logits, std::int64_t size, std::int32_t count, std::int32_t* ids, float* values) {
  TF_ASSERT(count > 0 && count <= size);
  std::int32_t held = 0;
  const auto insert = [&](std::int32_t id, float value) {
    // Later ids lose ties, so a new value goes behind equal ones.
    std::int32_t place = held < count ? held++ : count - 1;
    for (; place > 0 && values[place - 1] < value; --place) {
      values[place] = values[place - 1];
      ids[place] = ids[place - 1];
    }
    values[place] = value;
    ids[place] = id;
  };
  for (std::int64_t begin = 0; begin < size; begin += kChunk) {
    const std::int64_t chunk = std::min(kChunk, size - begin);
    if (held == count && !(chunk_maximum(logits + begin, chunk) > values[count - 1])) continue;
    for (std::int64_t i = begin; i < begin + chunk; ++i) {
      const float value = std::isnan(logits[i]) ? -std::numeric_limits<float>::infinity() : logits[i];
      if (held < count || value > values[count - 1]) insert(static_cast<std::int32_t>(i), value);
    }
  }
}

}  // namespace tensorfold
