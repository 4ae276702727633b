// See model_check.h.
#include "engine/measure/model_check.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "engine/measure/pass_series.h"
#include "model/executor.h"

namespace tensorfold::measure {
namespace {

constexpr std::int32_t kRows = 32;
constexpr std::int32_t kRoutedRows = 256;  // where there are experts to spread over
constexpr std::int32_t kLogitsRows = 16;

class RoutingTally {
 public:
  RoutingTally(std::int64_t rows, std::int32_t experts) : rows_(rows), experts_(experts) {}

  void add(std::int32_t layer, const std::int32_t* experts, std::int32_t top_k) {
    std::vector<std::int64_t>& loads = loads_[layer];
    loads.resize(static_cast<std::size_t>(experts_), 0);
    for (std::int64_t i = 0; i < rows_ * top_k; ++i) ++loads.at(static_cast<std::size_t>(experts[i]));
    top_k_ = top_k;
  }

  std::optional<RoutingSpread> spread() const {
    if (loads_.empty()) return std::nullopt;
    RoutingSpread result;
    result.layers = static_cast<std::int32_t>(loads_.size());
    result.rows = rows_;
    result.top_k = top_k_;
    result.experts = experts_;
    result.used_min = result.experts;
    for (const auto& [layer, loads] : loads_) {
      const auto idle = std::count(loads.begin(), loads.end(), 0);
      const auto used = static_cast<std::int32_t>(loads.size()) - static_cast<std::int32_t>(idle);
      const double mean = static_cast<double>(rows_ * top_k_) / experts_;
      result.used_min = std::min(result.used_min, used);
      result.used_mean += static_cast<double>(used) / result.layers;
      result.load_max_over_mean =
          std::max(result.load_max_over_mean, static_cast<double>(*std::max_element(loads.begin(), loads.end())) / mean);
    }
    return result;
  }

 private:
  std::map<std::int32_t, std::vector<std::int64_t>> loads_;
  std::int64_t rows_;
  std::int32_t experts_, top_k_ = 0;
};

/// Of any layer; 0 without mixtures.
std::int32_t most_experts(const Executor* executor) {
  std::int32_t most = 0;
  if (executor == nullptr) return most;
  for (const LayerDescription& layer : executor->description().layers) {
    if (const auto* mixture = std::get_if<MoeFeedForward>(&layer.feed_forward)) most = std::max(most, mixture->experts);
  }
  return most;
}

void look_at(const ForwardResult& result, std::int32_t vocabulary_size, ModelCheck& check) {
  const auto count = result.logits_rows.size() * static_cast<std::size_t>(vocabulary_size);
  for (std::size_t i = 0; i < count; ++i) {
    if (std::isfinite(result.logits[i])) {
      check.largest = std::max(check.largest, std::fabs(static_cast<double>(result.logits[i])));
    } else {
      ++check.not_finite;
    }
  }
  check.logits_rows += static_cast<std::int64_t>(result.logits_rows.size());
}

}  // namespace

ModelCheck check_model(LanguageModel& model) {
  const ModelFacts& facts = model.facts();
  auto* executor = dynamic_cast<Executor*>(&model);
  const std::int32_t experts = most_experts(executor);
  PassShape shape;
  shape.rows = std::min({experts > 0 ? kRoutedRows : kRows, facts.pass_rows_max, facts.context_max});
  shape.commits = true;
  shape.logits_rows = std::min(kLogitsRows, shape.rows);
  shape.logits_on_host = true;
  RoutingTally routing(shape.rows, experts);
  if (experts > 0) {
    ExecutorObserver observer;
    observer.on_experts = [&routing](std::int32_t layer, const std::int32_t* chosen, std::int64_t,
                                     std::int32_t top_k) { routing.add(layer, chosen, top_k); };
    executor->set_observer(std::move(observer));
  }
  ModelCheck check;
  PassSeries pass(model, shape, 1);
  pass.run();
  if (experts > 0) executor->set_observer({});
  check.rows = shape.rows;
  look_at(pass.result(), facts.vocabulary_size, check);
  check.routing = routing.spread();
  return check;
}

}  // namespace tensorfold::measure
