// Where keys and values lie on the CPU: in a page, and, until a tree's path is accepted, in its slot.
//
// Page: for each kv head, keys [4 blocks of 16 keys][head_dim / 2][16 keys][2], then values [32 key
// pairs][head_dim padded to 16][2], all bf16. Both are what dot_block walks: sixteen columns of pairs along the sum.
// Slot: for each row of the tree and kv head, the key [head_dim], then the value [head_dim], bf16: they are only moved.
#pragma once

#include <cstring>

#include "base/error.h"
#include "base/limits.h"
#include "ops/attention.h"
#include "ops/cpu/ops_kernels.h"

namespace tensorfold::ops::cpu {

static_assert(kTileKeys == limits::kKvPageTokens);

struct PageLayout {
  explicit PageLayout(const KvGeometry& geometry)
      : head_dim(geometry.head_dim),
        width(round_up_16(geometry.head_dim)),
        head_elements(kTileKeys * (head_dim + width)),
        bytes(static_cast<std::size_t>(geometry.kv_heads * head_elements) * sizeof(std::uint16_t)),
        tree_row_elements(2 * geometry.kv_heads * head_dim),
        tree_bytes(static_cast<std::size_t>(limits::kTreeRowsMax * tree_row_elements) * sizeof(std::uint16_t)) {
    TF_ASSERT(geometry.kv_heads > 0 && head_dim > 0 && head_dim % 2 == 0);
  }
  std::uint16_t* keys(const KvPool& pool, std::int32_t page, std::int64_t kv_head) const {
    return reinterpret_cast<std::uint16_t*>(static_cast<std::byte*>(pool.pages) +
                                            static_cast<std::size_t>(page) * pool.page_bytes) +
           kv_head * head_elements;
  }
  std::uint16_t* values(const KvPool& pool, std::int32_t page, std::int64_t kv_head) const {
    return keys(pool, page, kv_head) + kTileKeys * head_dim;
  }
  std::uint16_t* tree_key(const KvPool& pool, std::int32_t slot, std::int32_t row, std::int64_t kv_head) const {
    TF_ASSERT(pool.trees != nullptr && row >= 0 && row < limits::kTreeRowsMax);
    return reinterpret_cast<std::uint16_t*>(static_cast<std::byte*>(pool.trees) +
                                            static_cast<std::size_t>(slot) * pool.tree_bytes) +
           row * tree_row_elements + kv_head * 2 * head_dim;
  }
  std::uint16_t* tree_value(const KvPool& pool, std::int32_t slot, std::int32_t row, std::int64_t kv_head) const {
    return tree_key(pool, slot, row, kv_head) + head_dim;
  }
  std::int64_t head_dim;
  std::int64_t width;
  std::int64_t head_elements;
  std::size_t bytes;  // of a page
  std::int64_t tree_row_elements;
  std::size_t tree_bytes;  // of a slot
};

/// Writes one key of a head's page.
inline void scatter_key(std::uint16_t* keys, std::int64_t head_dim, std::int64_t key, const std::uint16_t* x) {
  std::uint16_t* block = keys + (key / 16) * 16 * head_dim + (key % 16) * 2;
  for (std::int64_t i = 0; i < head_dim; i += 2) std::memcpy(block + i * 16, x + i, 2 * sizeof(std::uint16_t));
}

inline void scatter_value(std::uint16_t* values, std::int64_t width, std::int64_t head_dim, std::int64_t key,
                          const std::uint16_t* x) {
  std::uint16_t* pair = values + (key / 2) * width * 2 + key % 2;
  for (std::int64_t i = 0; i < head_dim; ++i) pair[2 * i] = x[i];
}

}  // namespace tensorfold::ops::cpu
