// Where a forward pass spends its time: runs passes of several widths over a model and prints the time of each kind of
// operation, measured around the backend's calls. Machines are shared, and what disturbs a call only ever adds: of every
// kind of call the fastest counts, times the calls of a pass. Their sum is what a pass would take undisturbed (without what
// lies between operations), and is compared with that of the first width; the best whole pass is printed beside it.
//
//   op_profile MODEL [--threads N] [--rows 1,8,512] [--context 256] [--passes 20] [--path avx2]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/limits.h"
#include "checkpoint/checkpoint.h"
#include "model/load.h"
#include "ops/cpu/cpu_backend.h"

namespace tensorfold {
namespace {

using Clock = std::chrono::steady_clock;

struct Tally {
  double fastest = 1e9;  // seconds of one call
  std::int64_t calls = 0;
};
std::map<std::string, Tally> tallies;

// Forwards every call and adds up its time.
class TimedBackend final : public ops::Backend {
 public:
  explicit TimedBackend(std::unique_ptr<ops::Backend> inner) : inner_(std::move(inner)) {}

  const ops::BackendInfo& info() const override { return inner_->info(); }
  std::unique_ptr<ops::Buffer> allocate(std::size_t bytes, const char* purpose) override {
    return inner_->allocate(bytes, purpose);
  }
  void copy_to_backend(void* destination, const void* source, std::size_t bytes) override {
    inner_->copy_to_backend(destination, source, bytes);
  }
  void copy_to_host(void* destination, const void* source, std::size_t bytes) override {
    inner_->copy_to_host(destination, source, bytes);
  }
  void zero(void* destination, std::size_t bytes) override { inner_->zero(destination, bytes); }
  void synchronise() override { inner_->synchronise(); }
  std::unique_ptr<ops::Linear> load_linear(const ops::LinearSource& source) override {
    return inner_->load_linear(source);
  }
  std::size_t kv_page_bytes(const ops::KvGeometry& geometry) const override { return inner_->kv_page_bytes(geometry); }
  std::size_t kv_tree_bytes(const ops::KvGeometry& geometry) const override { return inner_->kv_tree_bytes(geometry); }
  std::size_t gated_delta_state_bytes(const ops::GatedDeltaGeometry& geometry) const override {
    return inner_->gated_delta_state_bytes(geometry);
  }
  std::size_t gated_delta_window_row_bytes(const ops::GatedDeltaGeometry& geometry) const override {
    return inner_->gated_delta_window_row_bytes(geometry);
  }
  void linear(const ops::LinearParams& params) override {
    timed(fmt::format("linear {} x {}", params.weight->rows(), params.weight->columns()),
          [&] { inner_->linear(params); });
  }
  void embed(const ops::EmbedParams& params) override { timed("embed", [&] { inner_->embed(params); }); }
  void rms_norm(const ops::RmsNormParams& params) override { timed("rms_norm", [&] { inner_->rms_norm(params); }); }
  void rms_norm_add(const ops::RmsNormAddParams& params) override {
    timed("rms_norm_add", [&] { inner_->rms_norm_add(params); });
  }
  void attention_prepare(const ops::AttentionPrepareParams& params) override {
    timed("attention_prepare", [&] { inner_->attention_prepare(params); });
  }
  void attention(const ops::AttentionParams& params) override { timed("attention", [&] { inner_->attention(params); }); }
  void attention_replay(const ops::AttentionReplayParams& params) override {
    timed("attention_replay", [&] { inner_->attention_replay(params); });
  }
  void gated_activation(const ops::GatedActivationParams& params) override {
    timed("gated_activation", [&] { inner_->gated_activation(params); });
  }
  void soft_cap(const ops::SoftCapParams& params) override { timed("soft_cap", [&] { inner_->soft_cap(params); }); }
  void round_rows(const ops::RoundRowsParams& params) override {
    timed("round_rows", [&] { inner_->round_rows(params); });
  }
  void block_convolution(const ops::BlockConvolutionParams& params) override {
    timed("block_convolution", [&] { inner_->block_convolution(params); });
  }
  void gated_delta(const ops::GatedDeltaParams& params) override {
    timed("gated_delta", [&] { inner_->gated_delta(params); });
  }
  void gated_delta_settle(const ops::GatedDeltaSettleParams& params) override { inner_->gated_delta_settle(params); }
  void moe(const ops::MoeParams& params) override { timed("moe", [&] { inner_->moe(params); }); }

 private:
  template <typename Body>
  void timed(const std::string& name, const Body& body) {
    const auto start = Clock::now();
    body();
    auto& tally = tallies[name];
    tally.fastest = std::min(tally.fastest, std::chrono::duration<double>(Clock::now() - start).count());
    ++tally.calls;
  }
  std::unique_ptr<ops::Backend> inner_;
};

// `rows` rows of one lane (a window) that starts at `context`.
RoundPlan window_plan(const LanguageModel& model, std::int32_t rows, std::int32_t context) {
  RoundPlan plan;
  PlanLane lane;
  lane.slot = 1;
  lane.row_count = rows;
  lane.position = context;
  for (const auto& group : model.facts().groups) {
    PageTable table;
    if (group.kind != CacheKind::kRecurrent) {
      table.resize(static_cast<std::size_t>((context + rows) / limits::kKvPageTokens + 1));
      std::iota(table.begin(), table.end(), 1);
    }
    lane.pages.push_back(std::move(table));
  }
  for (std::int32_t row = 0; row < rows; ++row) {
    PlanRow each;
    each.token = (row * 7919 + 11) % model.facts().vocabulary_size;
    each.sequence_index = context + row;
    each.parent_row = row - 1;
    each.rope_position.fill(each.sequence_index);
    each.flags = row + 1 == rows || rows <= limits::kWindowRowsMax ? kRowWantsLogits : 0u;
    plan.rows.push_back(each);
  }
  plan.lanes.push_back(std::move(lane));
  return plan;
}

int run(int argc, char** argv) {
  std::string model_path, path;
  int threads = 2, context = 256, passes = 20;
  std::vector<int> widths{1, 8, 512};
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument[0] != '-') {
      model_path = argument;
      continue;
    }
    if (++i >= argc) fail(ErrorCode::kInvalidArgument, "{} needs a value", argument);
    if (argument == "--threads") {
      threads = std::stoi(argv[i]);
    } else if (argument == "--context") {
      context = std::stoi(argv[i]);
    } else if (argument == "--path") {
      path = argv[i];
    } else if (argument == "--passes") {
      passes = std::stoi(argv[i]);
    } else if (argument == "--rows") {
      widths.clear();
      std::stringstream list(argv[i]);
      for (std::string item; std::getline(list, item, ',');) widths.push_back(std::stoi(item));
    } else {
      fail(ErrorCode::kInvalidArgument, "unknown argument {}; see the head of bench/op_profile.cpp", argument);
    }
  }
  if (model_path.empty()) fail(ErrorCode::kInvalidArgument, "usage: op_profile MODEL [--threads N] ...");
  ops::CpuBackendOptions options;
  options.threads = threads;
  options.path = path;
  auto backend = std::make_unique<TimedBackend>(ops::make_cpu_backend(options));
  auto model = load_language_model(Checkpoint::open(model_path), std::move(backend), {});
  const int longest = context + *std::max_element(widths.begin(), widths.end());
  model->allocate_caches(std::vector<std::int32_t>(model->facts().groups.size(), longest / limits::kKvPageTokens + 2), 2, limits::kWindowRowsMax);
  std::printf("%s, path %s, %d threads, %d keys before the window\n", model_path.c_str(),
              model->facts().backend_path.c_str(), threads, context);
  double first_sum = 0;
  for (const int rows : widths) {
    const auto plan = window_plan(*model, rows, context);
    ForwardResult result;
    model->forward(plan, result);
    const int count = rows > 64 ? std::max(1, passes / 10) : passes;
    tallies.clear();
    double best_pass = 1e9;
    for (int pass = 0; pass < count; ++pass) {
      const auto start = Clock::now();
      model->forward(plan, result);
      best_pass = std::min(best_pass, std::chrono::duration<double>(Clock::now() - start).count());
    }
    std::vector<std::pair<double, std::string>> lines;
    double sum = 0;
    for (const auto& [name, tally] : tallies) {
      const double seconds = tally.fastest * static_cast<double>(tally.calls / count);
      sum += seconds;
      lines.emplace_back(seconds, fmt::format("    {:<28} {:8.3f} ms  {:7.1f} us a call", name, 1e3 * seconds,
                                              1e6 * tally.fastest));
    }
    if (first_sum == 0) first_sum = sum;
    std::printf("rows %4d: operations %8.3f ms, %.2f of the first width; best pass %8.3f ms\n", rows, 1e3 * sum,
                sum / first_sum, 1e3 * best_pass);
    std::sort(lines.rbegin(), lines.rend());
    for (const auto& line : lines) std::printf("%s\n", line.second.c_str());
  }
  return 0;
}

}  // namespace
}  // namespace tensorfold

int main(int argc, char** argv) {
  try {
    return tensorfold::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "op_profile: %s\n", error.what());
    return 1;
  }
}
