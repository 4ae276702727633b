// See operation_times.h.
#include "engine/measure/operation_times.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace tensorfold::measure {
namespace {

constexpr std::int32_t kPassesMax = 60;    // for one figure
constexpr std::int32_t kWarmPasses = 2;    // a backend that captures passes does so at the second
constexpr double kFigureSeconds = 0.2;     // worth spending on one figure

Samples run(PassSeries& passes, std::int32_t repeats) {
  passes.restart();
  for (std::int32_t i = 0; i < kWarmPasses; ++i) passes.run();
  return passes.run_for(repeats, kFigureSeconds);
}

std::map<std::string, OperationCalls> record(PassSeries& passes, SelectiveBackend& backend) {
  passes.restart();
  passes.run();
  backend.set_mode(SelectiveBackend::Mode::kRecord);
  backend.take_calls();
  passes.run();  // the second: with rows to replay, as most have
  return backend.take_calls();
}

}  // namespace

OperationTimes measure_operations(LanguageModel& model, SelectiveBackend& backend, const PassShape& shape,
                                  std::int32_t repeats) {
  TF_ASSERT(repeats >= 1);
  OperationTimes result;
  PassSeries passes(model, shape, std::max(repeats, kPassesMax) + kWarmPasses);
  backend.set_mode(SelectiveBackend::Mode::kAll);
  result.pass_seconds = run(passes, repeats);
  const auto calls = record(passes, backend);
  backend.set_mode(SelectiveBackend::Mode::kNone);
  result.empty_seconds = run(passes, repeats);
  const double empty = result.empty_seconds.median();
  for (const auto& [name, each] : calls) {
    OperationTime operation{name, each.calls, each.bytes, {}, {}};
    backend.select(name);
    const Samples passed = run(passes, repeats);
    for (const double seconds : passed.values()) {
      operation.seconds.add(std::max(0.0, seconds - empty));
    }
    backend.leave_out(name);
    const Samples without = run(passes, repeats);
    for (const double seconds : without.values()) {
      operation.in_place_seconds.add(std::max(0.0, result.pass_seconds.median() - seconds));
    }
    result.operations.push_back(std::move(operation));
  }
  backend.set_mode(SelectiveBackend::Mode::kAll);
  std::stable_sort(result.operations.begin(), result.operations.end(),
                   [](const auto& a, const auto& b) { return a.seconds.median() > b.seconds.median(); });
  return result;
}

}  // namespace tensorfold::measure
