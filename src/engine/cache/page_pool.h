// Allocates the pages of every cache group and the recurrent-state slots. It owns which page belongs to whom; the model
// owns the bytes. Pages are promised before they are handed out: a stream reserves all it can ever need when it is
// admitted, so that nothing fails in the middle of a reply. Reference counts let prefixes share pages; what only a
// cache holds is given up as soon as a stream needs the room (set_reclaimer).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/language_model.h"

namespace tensorfold {

class PagePool {
 public:
  /// `poison_freed` fills pages and slots with NaN when they fall free (tests: whoever reads a stale one shows it).
  PagePool(LanguageModel& model, std::vector<std::int32_t> page_counts, std::int32_t slot_count, bool poison_freed);

  std::int32_t group_count() const { return static_cast<std::int32_t>(groups_.size()); }
  std::int32_t unreserved(std::int32_t group) const;
  std::int32_t free_pages(std::int32_t group) const;

  /// Called when a reservation finds too few pages: drops something cached that holds a page of the group. True:
  /// something was dropped (ask again), false: nothing is left to drop.
  void set_reclaimer(std::function<bool(std::int32_t group)> reclaimer) { reclaimer_ = std::move(reclaimer); }

  /// Sets `count` pages of a group aside, reclaiming cached ones where needed; false when that many aren't to be had.
  bool reserve(std::int32_t group, std::int32_t count);
  void cancel_reservation(std::int32_t group, std::int32_t count);
  /// Hands out a reserved page, zeroed, with one reference.
  std::int32_t take_reserved(std::int32_t group);
  /// Hands out a reserved page with the content of `from` and one reference.
  std::int32_t take_reserved_copy(std::int32_t group, std::int32_t from);
  /// Hands out a reserved page with the content `bytes` and one reference.
  std::int32_t take_reserved_written(std::int32_t group, const std::byte* bytes);
  void add_reference(std::int32_t group, std::int32_t page);
  std::int32_t references(std::int32_t group, std::int32_t page) const;
  /// Drops a reference; true when the page fell free.
  bool release(std::int32_t group, std::int32_t page);

  std::int32_t free_slots() const { return static_cast<std::int32_t>(free_slots_.size()); }
  /// Hands out a zeroed slot, or 0 when none is free.
  std::int32_t take_slot();
  void release_slot(std::int32_t slot);

 private:
  struct Group {
    std::vector<std::int32_t> free;        // a stack; page 0 is never in it
    std::vector<std::int32_t> references;  // by page
    std::int32_t reserved = 0;
  };
  std::int32_t pop_reserved(std::int32_t group);
  Group& at(std::int32_t group);
  const Group& at(std::int32_t group) const;

  LanguageModel& model_;
  bool poison_freed_;
  std::vector<Group> groups_;
  std::vector<std::int32_t> free_slots_;
  std::function<bool(std::int32_t)> reclaimer_;
};

}  // namespace tensorfold
