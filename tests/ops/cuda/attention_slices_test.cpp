// Attention whose partial results don't fit their share of scratch memory at once: walked in slices, with the bits of one piece.
// A backend that may take little memory has small slices.
#include "ops/attention_harness.h"

#include "support/synced_backend.h"

namespace tensorfold::ops {
namespace {

using AttentionSlices = OperationTest;

constexpr std::uint64_t kLittleMemory = 64u << 20;

std::unique_ptr<Backend> backend_with(const std::string& path, std::uint64_t memory_bytes_max) {
  CudaBackendOptions options;
  options.pinned_buffers = true;
  options.hopper_paths = path != "every GPU";
  options.memory_bytes_max = memory_bytes_max;
  return std::make_unique<test::SyncedBackend>(make_cuda_backend(options));
}

/// Windows of several widths, a tree and a prompt among windows, over contexts of up to 3,000 keys: up to seven slices.
void run(AttentionHarness& harness) {
  const std::vector<int> contexts = {3000, 2500, 130, 2900};
  for (int lane = 0; lane < 4; ++lane) harness.fill(lane, contexts[static_cast<std::size_t>(lane)]);
  harness.pass({{2, 16}, {0, 16}, {3, 16}, {1, 16}});
  harness.pass({{0, 1}, {1, 1}, {2, 1}, {3, 1}});
  harness.pass({{1, 100}, {3, 7}});
  harness.pass({{0, 6, {-1, 0, 0, 1, 1, 4}, 5}, {2, 90}, {3, 16}});
  harness.pass({{1, 140}, {2, 30}, {3, 50}});
}

TEST_F(AttentionSlices, HaveTheBitsOfOnePiece) {
  const AttentionShape shapes[] = {
      {.heads = 6, .kv_heads = 2, .head_dim = 64, .rotary_dims = 64},
      {.heads = 5, .kv_heads = 1, .head_dim = 96, .window = 700},
      {.heads = 8, .kv_heads = 1, .head_dim = 256, .rotary_dims = 64, .norms = true, .gated = true},
  };
  for (const AttentionShape& shape : shapes) {
    for (const std::string& path : available_paths()) {
      AttentionHarness whole(backend_with(path, 0), shape, 4, 3200), sliced(backend_with(path, kLittleMemory), shape, 4, 3200);
      run(whole);
      run(sliced);
      const std::string what = std::to_string(shape.head_dim) + " on " + path;
      EXPECT_TRUE(same_bits(sliced.all(), whole.all())) << what;
      for (std::int32_t row = 0; row < 6; ++row) {
        EXPECT_TRUE(same_bits(sliced.tree_row(0, row), whole.tree_row(0, row))) << what << ", row " << row << " of the tree";
      }
    }
  }
}

}  // namespace
}  // namespace tensorfold::ops
