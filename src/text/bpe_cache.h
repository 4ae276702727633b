// A bounded cache from short pieces to their ids, for all threads: a direct-mapped table whose slots are overwritten on
// collision, guarded by one mutex for each group of slots.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

namespace tensorfold {

class PieceCache {
 public:
  static constexpr std::size_t kPieceBytesMax = 30;
  static constexpr std::size_t kIdsMax = 6;

  PieceCache() : slots_(kSlotCount), locks_(std::make_unique<std::array<std::mutex, kLockCount>>()) {}

  bool find(std::string_view piece, std::uint64_t hash, std::vector<std::int32_t>& ids) const {
    const std::size_t index = hash % kSlotCount;
    const std::lock_guard guard((*locks_)[index % kLockCount]);
    const Slot& slot = slots_[index];
    if (slot.hash != hash || std::string_view(slot.piece, slot.length) != piece) return false;
    ids.insert(ids.end(), slot.ids, slot.ids + slot.id_count);
    return true;
  }

  void store(std::string_view piece, std::uint64_t hash, const std::int32_t* ids, std::size_t id_count) {
    if (piece.size() > kPieceBytesMax || id_count > kIdsMax) return;
    const std::size_t index = hash % kSlotCount;
    const std::lock_guard guard((*locks_)[index % kLockCount]);
    Slot& slot = slots_[index];
    slot.hash = hash;
    slot.length = static_cast<std::uint8_t>(piece.size());
    slot.id_count = static_cast<std::uint8_t>(id_count);
    // Not memcpy: a piece that encodes to nothing comes with a null `ids`.
    std::copy_n(piece.data(), piece.size(), slot.piece);
    std::copy_n(ids, id_count, slot.ids);
  }

 private:
  static constexpr std::size_t kSlotCount = 1 << 15;
  static constexpr std::size_t kLockCount = 64;
  struct Slot {
    std::uint64_t hash = 0;
    std::uint8_t length = 0, id_count = 0;
    char piece[kPieceBytesMax] = {};
    std::int32_t ids[kIdsMax] = {};
  };
  std::vector<Slot> slots_;
  std::unique_ptr<std::array<std::mutex, kLockCount>> locks_;
};

}  // namespace tensorfold
