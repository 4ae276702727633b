// The class behind make_cpu_backend(): memory, facts, and one forwarding method an operation. Each sets the compute
// mode of the calling thread and gives it back, because the same thread samples tokens in the default mode afterwards.
#include "ops/cpu/cpu_backend.h"

#include <sched.h>

#include <cstring>
#include <new>
#include <thread>

#include "base/error.h"
#include "base/host_pages.h"
#include "ops/cpu/cpu_operations.h"
#include "ops/cpu/linear.h"

namespace tensorfold::ops {
namespace {

/// Bumped with any change of order or rounding in this folder.
constexpr int kArithmeticVersion = 1;
constexpr int kThreadsMax = 1024;

/// A pool costs memory only where it is used: pages are zero without being touched.
class CpuBuffer final : public Buffer {
 public:
  CpuBuffer(std::size_t bytes, const char* purpose) try : pages_(bytes) {
  } catch (const std::bad_alloc&) {
    fail(ErrorCode::kResourceExhausted,
         "Out of memory: {} needs {} MiB. Lower --context or the number of lanes, or use a smaller model.", purpose,
         (bytes + (1u << 20) - 1) >> 20);
  }
  void* data() override { return pages_.data(); }
  std::size_t bytes() const override { return pages_.size(); }

 private:
  HostPages pages_;
};

cpu::CpuPath path_of(const std::string& name) {
  if (name.empty()) return cpu::select_cpu_path();
  for (const cpu::CpuPath path : cpu::kCpuPaths) {
    if (name != cpu::cpu_path_name(path)) continue;
    if (cpu::cpu_path_available(path)) return path;
    fail(ErrorCode::kUnsupported,
         "The CPU path {} can't run on this machine. Leave it out to use the fastest that can.", name);
  }
  fail(ErrorCode::kInvalidArgument, "There is no CPU path \"{}\": use amx, avx512_bf16, avx512, avx2 or neon, or leave it out.",
       name);
}

/// Cores this process may run on, which a container or taskset may limit.
int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int threads_of(int threads) {
  if (threads < 0 || threads > kThreadsMax) {
    fail(ErrorCode::kInvalidArgument, "{} threads can't be used: give 1 to {}, or 0 for all cores.", threads,
         kThreadsMax);
  }
  return threads == 0 ? usable_cores() : threads;
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(cpu::CpuPath path, int threads) : context_(path, threads) {
    info_.name = "cpu";
    info_.path = cpu::cpu_path_name(path);
    info_.arithmetic_version = kArithmeticVersion;
    info_.activation_bytes = sizeof(std::uint16_t);
    info_.threads = threads;
  }

  const BackendInfo& info() const override { return info_; }
  std::unique_ptr<Buffer> allocate(std::size_t bytes, const char* purpose) override {
    return std::make_unique<CpuBuffer>(bytes, purpose);
  }
  void copy_to_backend(void* destination, const void* source, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(destination, source, bytes);
  }
  void copy_to_host(void* destination, const void* source, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(destination, source, bytes);
  }
  void zero(void* destination, std::size_t bytes) override {
    if (bytes > 0) std::memset(destination, 0, bytes);
  }
  void synchronise() override {}

  std::unique_ptr<Linear> load_linear(const LinearSource& source) override {
    const cpu::ComputeModeScope mode;
    return cpu::pack_linear(source, context_.path, context_.pool);
  }
  void linear(const LinearParams& params) override {
    const cpu::ComputeModeScope mode;
    cpu::linear(context_.pool, params);
  }
  void embed(const EmbedParams& params) override {
    const cpu::ComputeModeScope mode;
    cpu::embed(context_.pool, params);
  }
  void rms_norm(const RmsNormParams& params) override {
    const cpu::ComputeModeScope mode;
    cpu::rms_norm(context_, params);
  }
  void rms_norm_add(const RmsNormAddParams& params) override {
    const cpu::ComputeModeScope mode;
    cpu::rms_norm_add(context_, params);
  }
  std::size_t kv_page_bytes(const KvGeometry& geometry) const override { return cpu::kv_page_bytes(geometry); }
  std::size_t kv_tree_bytes(const KvGeometry& geometry) const override { return cpu::kv_tree_bytes(geometry); }
  void attention_prepare(const AttentionPrepareParams& params) override {
    const cpu::ComputeModeScope mode;
    cpu::attention_prepare(context_, params);
  }
  void attention(const AttentionParams& params) override {
    const cpu::ComputeModeScope mode;
    cpu::attention(context_, params);
  }
  void attention_replay(const AttentionReplayParams& params) override {
    const cpu::ComputeModeScope mode;
    cpu::attention_replay(context_, params);
  }
  void gated_activation(const GatedActivationParams& params) override {
    const cpu::ComputeModeScope mode;
    cpu::gated_activation(context_, params);
  }
  void soft_cap(const SoftCapParams& params) override {
    const cpu::ComputeModeScope mode;
    cpu::soft_cap(context_, params);
  }
  void round_rows(const RoundRowsParams& params) override {
    const cpu::ComputeModeScope mode;
    cpu::round_rows(context_, params);
  }
  void block_convolution(const BlockConvolutionParams& params) override {
    const cpu::ComputeModeScope mode;
    cpu::block_convolution(context_, params);
  }
  std::size_t gated_delta_state_bytes(const GatedDeltaGeometry& geometry) const override {
    return cpu::gated_delta_state_bytes(geometry);
  }
  std::size_t gated_delta_window_row_bytes(const GatedDeltaGeometry& geometry) const override {
    return cpu::gated_delta_window_row_bytes(geometry);
  }
  void gated_delta(const GatedDeltaParams& params) override {
    const cpu::ComputeModeScope mode;
    cpu::gated_delta(context_, params);
  }
  void moe(const MoeParams& params) override {
    const cpu::ComputeModeScope mode;
    cpu::moe(context_, params);
  }

 private:
  BackendInfo info_;
  cpu::CpuContext context_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(const CpuBackendOptions& options) {
  return std::make_unique<CpuBackend>(path_of(options.path), threads_of(options.threads));
}

}  // namespace tensorfold::ops
