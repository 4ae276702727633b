// A stream's page tables and slot (see stream_cache.h).
#include "engine/cache/stream_cache.h"

#include <algorithm>

#include "base/error.h"
#include "base/limits.h"

namespace tensorfold {
namespace {
constexpr std::int32_t kPageTokens = limits::kKvPageTokens;
}

std::int32_t stream_pages_max(const CacheGroup& group, std::int32_t tokens, std::int32_t pass_rows) {
  if (group.page_bytes == 0 || tokens <= 0) return 0;
  const std::int32_t all = (tokens - 1) / kPageTokens + 1;
  if (group.kind != CacheKind::kSliding || group.window <= 0) return all;
  // Rows [p, p + pass_rows) see keys from p - window + 1 on: window + pass_rows - 1 keys, at any offset in a page.
  const std::int64_t keys = static_cast<std::int64_t>(group.window) + pass_rows - 1;
  return static_cast<std::int32_t>(std::min<std::int64_t>(all, (keys - 1) / kPageTokens + 2));
}

StreamCache::~StreamCache() {
  release();
}

bool StreamCache::admit(PagePool& pool, const std::vector<CacheGroup>& groups, std::int32_t tokens,
                        std::int32_t pass_rows) {
  TF_ASSERT(!is_admitted());
  std::vector<std::int32_t> reserved(groups.size(), 0);
  const auto give_back = [&](std::size_t count) {
    for (std::size_t g = 0; g < count; ++g) pool.cancel_reservation(static_cast<std::int32_t>(g), reserved[g]);
    return false;
  };
  for (std::size_t g = 0; g < groups.size(); ++g) {
    reserved[g] = stream_pages_max(groups[g], tokens, pass_rows);
    if (!pool.reserve(static_cast<std::int32_t>(g), reserved[g])) return give_back(g);
  }
  const std::int32_t slot = pool.take_slot();
  if (slot == 0) return give_back(groups.size());
  pool_ = &pool;
  groups_ = groups;
  tables_.assign(groups.size(), {});
  first_held_.assign(groups.size(), 0);
  reserved_ = std::move(reserved);
  slot_ = slot;
  return true;
}

void StreamCache::prepare(std::int32_t position, std::int32_t rows) {
  TF_ASSERT(is_admitted() && rows > 0);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const CacheGroup& group = groups_[g];
    if (group.page_bytes == 0) continue;
    const std::int32_t index = static_cast<std::int32_t>(g);
    PageTable& table = tables_[g];
    if (group.kind == CacheKind::kSliding && group.window > 0) {
      const std::int32_t first_visible = std::max(position - group.window + 1, 0);
      const std::int32_t held_end = static_cast<std::int32_t>(table.size());
      for (; first_held_[g] < std::min(first_visible / kPageTokens, held_end); ++first_held_[g]) {
        std::int32_t& page = table[static_cast<std::size_t>(first_held_[g])];
        if (pool_->release(index, page) && pool_->reserve(index, 1)) ++reserved_[g];
        page = -1;
      }
    }
    const std::size_t needed = static_cast<std::size_t>((position + rows - 1) / kPageTokens) + 1;
    while (table.size() < needed) {
      TF_ASSERT(reserved_[g] > 0);
      table.push_back(pool_->take_reserved(index));
      --reserved_[g];
    }
  }
}

void StreamCache::release() {
  if (!is_admitted()) return;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::int32_t index = static_cast<std::int32_t>(g);
    for (const std::int32_t page : tables_[g]) {
      if (page > 0) pool_->release(index, page);
    }
    pool_->cancel_reservation(index, reserved_[g]);
  }
  pool_->release_slot(slot_);
  tables_.clear();
  reserved_.clear();
  first_held_.clear();
  slot_ = 0;
  pool_ = nullptr;
}

}  // namespace tensorfold
