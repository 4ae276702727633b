// Allocates the pages of every cache group and the recurrent-state slots. It owns which page belongs to whom; the model
// owns the bytes. Pages are promised before they are handed out: a stream reserves all it can ever need when it is
// admitted, so that nothing fails in the middle of a reply. Reference counts let prefixes share pages.
#pragma once

#include <cstdint>
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

  /// Sets `count` pages of a group aside; false when that many aren't left.
  bool reserve(std::int32_t group, std::int32_t count);
  void cancel_reservation(std::int32_t group, std::int32_t count);
  /// Hands out a reserved page, zeroed, with one reference.
  std::int32_t take_reserved(std::int32_t group);
  void add_reference(std::int32_t group, std::int32_t page);
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
  Group& at(std::int32_t group);
  const Group& at(std::int32_t group) const;

  LanguageModel& model_;
  bool poison_freed_;
  std::vector<Group> groups_;
  std::vector<std::int32_t> free_slots_;
};

}  // namespace tensorfold
