// Page and slot allocation (see page_pool.h).
#include "engine/cache/page_pool.h"

#include <algorithm>

#include "base/error.h"

namespace tensorfold {

PagePool::PagePool(LanguageModel& model, std::vector<std::int32_t> page_counts, std::int32_t slot_count,
                   bool poison_freed)
    : model_(model), poison_freed_(poison_freed) {
  for (const std::int32_t count : page_counts) {
    Group group;
    group.references.assign(static_cast<std::size_t>(std::max(count, 0)), 0);
    for (std::int32_t page = count - 1; page >= 1; --page) group.free.push_back(page);
    groups_.push_back(std::move(group));
  }
  for (std::int32_t slot = slot_count - 1; slot >= 1; --slot) free_slots_.push_back(slot);
}

PagePool::Group& PagePool::at(std::int32_t group) {
  TF_ASSERT(group >= 0 && group < group_count());
  return groups_[static_cast<std::size_t>(group)];
}

const PagePool::Group& PagePool::at(std::int32_t group) const {
  TF_ASSERT(group >= 0 && group < group_count());
  return groups_[static_cast<std::size_t>(group)];
}

std::int32_t PagePool::free_pages(std::int32_t group) const {
  return static_cast<std::int32_t>(at(group).free.size());
}

std::int32_t PagePool::unreserved(std::int32_t group) const {
  return free_pages(group) - at(group).reserved;
}

bool PagePool::reserve(std::int32_t group, std::int32_t count) {
  TF_ASSERT(count >= 0);
  while (count > unreserved(group)) {
    if (!reclaimer_ || !reclaimer_(group)) return false;
  }
  at(group).reserved += count;
  return true;
}

void PagePool::cancel_reservation(std::int32_t group, std::int32_t count) {
  TF_ASSERT(count >= 0 && count <= at(group).reserved);
  at(group).reserved -= count;
}

std::int32_t PagePool::pop_reserved(std::int32_t group) {
  Group& pages = at(group);
  TF_ASSERT(pages.reserved > 0 && !pages.free.empty());
  const std::int32_t page = pages.free.back();
  pages.free.pop_back();
  --pages.reserved;
  pages.references[static_cast<std::size_t>(page)] = 1;
  return page;
}

std::int32_t PagePool::take_reserved(std::int32_t group) {
  TF_ASSERT(!at(group).free.empty());
  model_.zero_page(group, at(group).free.back());  // first: what fails leaves the pool as it was
  return pop_reserved(group);
}

std::int32_t PagePool::take_reserved_copy(std::int32_t group, std::int32_t from) {
  TF_ASSERT(!at(group).free.empty() && references(group, from) > 0);
  model_.copy_page(group, from, at(group).free.back());
  return pop_reserved(group);
}

std::int32_t PagePool::take_reserved_written(std::int32_t group, const std::byte* bytes) {
  TF_ASSERT(!at(group).free.empty());
  model_.write_page(group, at(group).free.back(), bytes);
  return pop_reserved(group);
}

void PagePool::add_reference(std::int32_t group, std::int32_t page) {
  std::int32_t& references = at(group).references.at(static_cast<std::size_t>(page));
  TF_ASSERT(references > 0);
  ++references;
}

std::int32_t PagePool::references(std::int32_t group, std::int32_t page) const {
  return at(group).references.at(static_cast<std::size_t>(page));
}

bool PagePool::release(std::int32_t group, std::int32_t page) {
  Group& pages = at(group);
  std::int32_t& references = pages.references.at(static_cast<std::size_t>(page));
  TF_ASSERT(page > 0 && references > 0);
  if (--references > 0) return false;
  if (poison_freed_) model_.poison_page(group, page);
  pages.free.push_back(page);
  return true;
}

std::int32_t PagePool::take_slot() {
  if (free_slots_.empty()) return 0;
  const std::int32_t slot = free_slots_.back();
  model_.zero_slot(slot);
  free_slots_.pop_back();
  return slot;
}

void PagePool::release_slot(std::int32_t slot) {
  TF_ASSERT(slot > 0 && std::find(free_slots_.begin(), free_slots_.end(), slot) == free_slots_.end());
  if (poison_freed_) model_.poison_slot(slot);
  free_slots_.push_back(slot);
}

}  // namespace tensorfold
