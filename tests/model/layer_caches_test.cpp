// Poisoned pages and slots: every byte of the one, none of its neighbours. What tests of stale memory rest on.
#include "model/layer_caches.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/model_backend.h"

namespace tensorfold {
namespace {

constexpr std::byte kPoison{0xff};
constexpr std::int32_t kUnits = 4;
constexpr std::int32_t kWindowRows = 13;

class PoisonedCaches : public testing::Test {
 protected:
  void SetUp() override {
    TF_SKIP_WITHOUT_BACKEND();
    backend_ = test::backend_under_test();
    caches_ = std::make_unique<LayerCaches>(*backend_);
    std::vector<CacheGroup> groups(3);
    LayerDescription layer;
    AttentionMixer attention;
    attention.heads = attention.kv_heads = 3;
    attention.head_dim = 64;
    layer.mixer = attention;
    caches_->add(layer, groups);
    GatedDeltaMixer delta;
    delta.geometry = {1, 3, 128, 128, 4};
    delta.cache_group = 1;
    layer.mixer = delta;
    caches_->add(layer, groups);
    caches_->add_draft_keys({1, 64}, 2, groups);
    caches_->allocate({kUnits, 0, kUnits}, kUnits, kWindowRows);
    for (std::size_t i = 0; i < caches_->size(); ++i) {
      const LayerCache& cache = (*caches_)[i];
      backend_->zero(cache.buffer->data(), cache.unit_bytes * kUnits);
      if (cache.trees) backend_->zero(cache.trees->data(), cache.tree_bytes * kUnits);
    }
  }

  /// How many bytes of each unit are poisoned.
  std::vector<std::size_t> poisoned(ops::Buffer& buffer, std::size_t unit_bytes) {
    std::vector<std::byte> bytes(unit_bytes * kUnits);
    backend_->copy_to_host(bytes.data(), buffer.data(), bytes.size());
    backend_->synchronise();
    std::vector<std::size_t> counts;
    for (auto at = bytes.begin(); at != bytes.end(); at += static_cast<std::ptrdiff_t>(unit_bytes)) {
      counts.push_back(static_cast<std::size_t>(std::count(at, at + static_cast<std::ptrdiff_t>(unit_bytes), kPoison)));
    }
    return counts;
  }
  std::vector<std::size_t> poisoned(std::size_t layer) {
    return poisoned(*(*caches_)[layer].buffer, (*caches_)[layer].unit_bytes);
  }
  static std::vector<std::size_t> only(std::size_t unit, std::size_t bytes) {
    std::vector<std::size_t> counts(kUnits, 0);
    counts[unit] = bytes;
    return counts;
  }

  std::unique_ptr<ops::Backend> backend_;
  std::unique_ptr<LayerCaches> caches_;
};

TEST_F(PoisonedCaches, APageWhole) {
  caches_->poison_page(0, 2);
  EXPECT_EQ(poisoned(0), only(2, (*caches_)[0].unit_bytes));
  EXPECT_EQ(poisoned(2), only(0, 0));
  caches_->poison_page(2, 1);
  EXPECT_EQ(poisoned(2), only(1, (*caches_)[2].unit_bytes));
  EXPECT_EQ(poisoned(0), only(2, (*caches_)[0].unit_bytes));
}

TEST_F(PoisonedCaches, ASlotWithItsWindowAndItsTree) {
  const LayerCache& attention = (*caches_)[0];
  const LayerCache& delta = (*caches_)[1];
  ASSERT_GT(delta.unit_bytes, delta.state_bytes);
  ASSERT_NE(delta.unit_bytes % 4096, 0u) << "a unit of whole pieces shows less";
  ASSERT_TRUE(attention.trees);
  caches_->poison_slot(3);
  EXPECT_EQ(poisoned(1), only(3, delta.unit_bytes));
  EXPECT_EQ(poisoned(*attention.trees, attention.tree_bytes), only(3, attention.tree_bytes));
  EXPECT_EQ(poisoned(0), only(0, 0));
}

}  // namespace
}  // namespace tensorfold
