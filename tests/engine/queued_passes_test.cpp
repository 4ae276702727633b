// Passes that the host doesn't wait for, as a GPU's prompt slices are: what they cost is told later, and slices are sized by that, not by
// the moment that queueing them took.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <mutex>
#include <thread>

#include "engine/engine.h"
#include "fake_model.h"
#include "stream_probe.h"

namespace tensorfold {
namespace {

using Clock = std::chrono::steady_clock;
using testing::counting_prompt;
using testing::FakeModel;
using testing::FakeModelOptions;
using testing::request_of;
using testing::StreamProbe;

/// Its passes run on a machine of their own, one behind the other; the host waits for those whose logits are wanted, and before it queues
/// a third.
class QueuedModel : public FakeModel {
 public:
  QueuedModel(FakeModelOptions options, double row_seconds) : FakeModel(std::move(options)), row_seconds_(row_seconds) {}

  void forward(const RoundPlan& plan, ForwardResult& result) override {
    FakeModel::forward(plan, result);
    std::this_thread::sleep_until(begin_of_last_);
    const double seconds = row_seconds_ * static_cast<double>(plan.rows.size());
    begin_of_last_ = std::max(Clock::now(), free_at_);
    free_at_ = begin_of_last_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    result.is_awaited = !result.logits_rows.empty();
    if (result.is_awaited) return std::this_thread::sleep_until(free_at_);
    queued_.push_back({free_at_, {static_cast<std::int64_t>(plan.rows.size()), seconds}});
  }
  std::vector<ops::PassTime> take_pass_times() override {
    std::vector<ops::PassTime> times;
    for (; !queued_.empty() && queued_.front().first <= Clock::now(); queued_.pop_front()) times.push_back(queued_.front().second);
    return times;
  }

 private:
  double row_seconds_;
  Clock::time_point begin_of_last_{}, free_at_{};
  std::deque<std::pair<Clock::time_point, ops::PassTime>> queued_;
};

TEST(QueuedPasses, SlicesAreSizedByWhatTheyTake) {
  std::mutex mutex;
  std::vector<std::size_t> widths;
  FakeModelOptions model;
  model.pass_rows_max = 512;
  model.has_recurrent = false;  // nor marks, which would cut slices
  model.on_forward = [&](const RoundPlan& plan) {
    const std::lock_guard lock(mutex);
    widths.push_back(plan.rows.size());
  };
  EngineOptions options;
  options.lanes = 1;
  options.context = 2000;
  options.cache_memory_bytes = 1u << 30;
  options.pass_seconds_max = 0.04;
  const auto engine = Engine::start(std::make_unique<QueuedModel>(std::move(model), 0.0005), options);
  StreamProbe probe;
  engine->open(request_of(counting_prompt(900), 4), probe.sink());
  EXPECT_EQ(probe.wait().reason, FinishReason::kLength);
  const std::lock_guard lock(mutex);
  ASSERT_GT(widths.size(), 8u);
  // 80 rows take as long as a pass may. Taken at the moment that queueing took, slices would grow to the widest pass.
  EXPECT_LE(*std::max_element(widths.begin(), widths.end()), 100u);
  EXPECT_GE(*std::max_element(widths.begin(), widths.end()), 40u);
}

}  // namespace
}  // namespace tensorfold
