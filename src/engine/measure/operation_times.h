// What each kind of operation of a model's pass takes, over all layers: the table that says where a pass's time goes and
// how near each part is to the memory's speed.
#pragma once

#include <string>
#include <vector>

#include "engine/measure/pass_series.h"
#include "engine/measure/selective_backend.h"

namespace tensorfold::measure {

struct OperationTime {
  std::string name;
  std::int64_t calls = 0;  // in a pass
  double bytes = 0.0;      // ... of all of them
  Samples seconds;         // ... without the pass's own cost
  Samples in_place_seconds;  // what the whole pass takes less without them: more than alone where each begins cold after the others
};

struct OperationTimes {
  Samples pass_seconds;   // everything, the pass's own cost included
  Samples empty_seconds;  // a pass without operations: planning, queueing, copying logits to the host
  std::vector<OperationTime> operations;  // slowest first
};

/// `backend` is the model's. At least `repeats` passes for each figure.
OperationTimes measure_operations(LanguageModel& model, SelectiveBackend& backend, const PassShape& shape,
                                  std::int32_t repeats);

}  // namespace tensorfold::measure
