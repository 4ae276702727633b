// A stream's page tables and slot (see stream_cache.h).
//
// Why nothing here can run out of pages: the pool holds the promised pages of every lane beside those meant for the
// prefix tree, and a stream's held and reserved pages never exceed its promise. A page that two streams share is
// counted in both promises but exists once, so a copy always finds room, after the tree has given up what only it
// holds.
#include "engine/cache/stream_cache.h"

#include <algorithm>

#include "base/error.h"
#include "base/limits.h"

namespace tensorfold {
namespace {

constexpr std::int32_t kPageTokens = limits::kKvPageTokens;

std::int32_t table_entries(const CacheGroup& group, std::int32_t tokens) {
  return group.page_bytes == 0 || tokens <= 0 ? 0 : (tokens - 1) / kPageTokens + 1;
}

bool slides(const CacheGroup& group) {
  return group.kind == CacheKind::kSliding && group.window > 0;
}

}  // namespace

std::int32_t stream_pages_max(const CacheGroup& group, std::int32_t tokens, std::int32_t pass_rows) {
  const std::int32_t all = table_entries(group, tokens);
  if (all == 0 || !slides(group)) return all;
  // Rows [p, p + pass_rows) see keys from p - window + 1 on: window + pass_rows - 1 keys, at any offset in a page.
  const std::int64_t keys = static_cast<std::int64_t>(group.window) + pass_rows - 1;
  return static_cast<std::int32_t>(std::min<std::int64_t>(all, (keys - 1) / kPageTokens + 2));
}

StreamCache::~StreamCache() {
  release();
}

bool StreamCache::admit(PagePool& pool, const std::vector<CacheGroup>& groups, std::int32_t tokens,
                        std::int32_t pass_rows, const SharedPrefix* prefix) {
  TF_ASSERT(!is_admitted());
  groups_ = groups;
  tables_.assign(groups.size(), {});
  first_held_.assign(groups.size(), 0);
  reserved_.assign(groups.size(), 0);
  table_max_.clear();
  table_max_.reserve(groups.size());
  pool_ = &pool;  // from here on release() gives back what is held
  if (prefix != nullptr) share(*prefix);  // first, so that making room can't take these pages away
  bool complete = true;
  for (std::size_t g = 0; g < groups.size() && complete; ++g) {
    table_max_.push_back(table_entries(groups[g], tokens));
    tables_[g].reserve(static_cast<std::size_t>(table_max_[g]));  // a page that is taken later needs its place
    const auto held = std::count_if(tables_[g].begin(), tables_[g].end(), [](std::int32_t page) { return page > 0; });
    const std::int32_t wanted = stream_pages_max(groups[g], tokens, pass_rows) - static_cast<std::int32_t>(held);
    TF_ASSERT(wanted >= 0);
    complete = pool.reserve(static_cast<std::int32_t>(g), wanted);
    if (complete) reserved_[g] = wanted;
  }
  if (complete) slot_ = pool.take_slot();
  if (slot_ != 0) return true;
  release();
  return false;
}

void StreamCache::share(const SharedPrefix& prefix) {
  TF_ASSERT(prefix.tables.size() == groups_.size() && prefix.position > 0);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    tables_[g] = prefix.tables[g];
    TF_ASSERT(static_cast<std::int32_t>(tables_[g].size()) == table_entries(groups_[g], prefix.position));
    for (const std::int32_t page : tables_[g]) {
      if (page > 0) pool_->add_reference(static_cast<std::int32_t>(g), page);
    }
  }
}

void StreamCache::prepare(std::int32_t position, std::int32_t rows, std::int32_t rewritten) {
  TF_ASSERT(is_admitted() && rows > 0 && rewritten >= 0 && rewritten <= position);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const CacheGroup& group = groups_[g];
    if (group.page_bytes == 0) continue;
    if (slides(group)) release_behind_window(g, position);
    // A drafter writes the entry of the last fed row as soon as the token after it is known.
    const std::int32_t behind = group.draft ? std::max(rewritten, std::min(position, 1)) : rewritten;
    own_pages(g, position - behind, position + rows);
    const std::size_t needed = static_cast<std::size_t>((position + rows - 1) / kPageTokens) + 1;
    const std::int32_t first_written = (position - behind) / kPageTokens;
    for (std::size_t entry = static_cast<std::size_t>(first_written); entry < std::min(needed, tables_[g].size());
         ++entry) {
      const std::int32_t page = tables_[g][entry];
      TF_ASSERT(page <= 0 ||
                pool_->references(static_cast<std::int32_t>(g), page) == 1);  // nobody else sees the writes
    }
    while (tables_[g].size() < needed) {
      TF_ASSERT(reserved_[g] > 0);
      tables_[g].push_back(pool_->take_reserved(static_cast<std::int32_t>(g)));
      --reserved_[g];
    }
  }
}

void StreamCache::release_behind_window(std::size_t group, std::int32_t position) {
  const std::int32_t index = static_cast<std::int32_t>(group);
  PageTable& table = tables_[group];
  const std::int32_t first_visible = std::max(position - groups_[group].window + 1, 0);
  const std::int32_t end = std::min(first_visible / kPageTokens, static_cast<std::int32_t>(table.size()));
  for (std::int32_t& first = first_held_[group]; first < end; ++first) {
    std::int32_t& page = table[static_cast<std::size_t>(first)];
    if (page <= 0) continue;
    pool_->release(index, page);
    page = -1;
    // What will still be taken is set aside again.
    if (reserved_[group] >= table_max_[group] - static_cast<std::int32_t>(table.size())) continue;
    const bool reserved = pool_->reserve(index, 1);
    TF_ASSERT(reserved);
    ++reserved_[group];
  }
}

void StreamCache::own_pages(std::size_t group, std::int32_t begin, std::int32_t end) {
  const std::int32_t index = static_cast<std::int32_t>(group);
  PageTable& table = tables_[group];
  const std::int32_t last = std::min((end - 1) / kPageTokens, static_cast<std::int32_t>(table.size()) - 1);
  for (std::int32_t entry = begin / kPageTokens; entry <= last; ++entry) {
    std::int32_t& page = table[static_cast<std::size_t>(entry)];
    if (page <= 0 || pool_->references(index, page) == 1) continue;
    if (!pool_->reserve(index, 1)) {
      TF_ASSERT(pool_->references(index, page) == 1);  // making room has dropped its other holder
      continue;
    }
    const std::int32_t copy = pool_->take_reserved_copy(index, page);
    pool_->release(index, page);
    page = copy;
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
  if (slot_ != 0) pool_->release_slot(slot_);
  tables_.clear();
  reserved_.clear();
  first_held_.clear();
  slot_ = 0;
  pool_ = nullptr;
}

}  // namespace tensorfold
