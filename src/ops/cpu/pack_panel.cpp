#include "ops/cpu/pack_panel.h"

#include <cstring>

namespace tensorfold::ops::cpu {
namespace {

int low_plane_bits(int bits) {
  return bits == 3 ? 2 : (bits == 5 || bits == 6) ? 4 : bits;
}

// A field of kBits bits in a little-endian unit (dword, word or byte) of a plane.
template <typename Unit, int kBits, typename Byte>
struct Field {
  Byte* at;
  int shift;

  Unit unit() const {
    Unit value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  std::uint8_t get() const { return static_cast<std::uint8_t>((unit() >> shift) & ((1u << kBits) - 1)); }
  void put(std::uint8_t code) const {
    const auto value = static_cast<Unit>(unit() | static_cast<Unit>(static_cast<Unit>(code) << shift));
    std::memcpy(at, &value, sizeof value);
  }
};

// Calls body(k, field) for the 32 codes of row `lane` in a block's plane. `halves` is the order of k that 6 bits have.
template <int kBits, typename Byte, typename Body>
void each_field(CodeOrder order, bool halves, int lane, Byte* plane, const Body& body) {
  if (order == CodeOrder::kRowLanes) {
    constexpr int kPerDword = 32 / kBits;
    for (int k = 0; k < kBlockColumns; ++k) {
      body(k, Field<std::uint32_t, kBits, Byte>{plane + k / kPerDword * 64 + 4 * lane, k % kPerDword * kBits});
    }
  } else if constexpr (kBits == 8) {
    for (int k = 0; k < kBlockColumns; ++k) body(k, Field<std::uint8_t, 8, Byte>{plane + lane * kBlockColumns + k, 0});
  } else {
    constexpr int kPerWord = 16 / kBits;
    Byte* group = plane + lane / kPerWord * 64;
    for (int k = 0; k < kBlockColumns; ++k) {
      const int word = halves ? k % 16 * 2 + k / 16 : k;
      body(k, Field<std::uint16_t, kBits, Byte>{group + 2 * word, lane % kPerWord * kBits});
    }
  }
}

template <typename Byte, typename Body>
void each_field(const PanelLayout& layout, int bits, int lane, Byte* plane, const Body& body) {
  const bool halves = layout.bits == 6;
  if (bits == 1) each_field<1>(layout.code_order, halves, lane, plane, body);
  if (bits == 2) each_field<2>(layout.code_order, halves, lane, plane, body);
  if (bits == 4) each_field<4>(layout.code_order, halves, lane, plane, body);
  if (bits == 8) each_field<8>(layout.code_order, halves, lane, plane, body);
}

std::int64_t bf16_place(const PanelLayout& layout, std::int64_t block, int k, int lane) {
  const std::int64_t tile = block * kBlockColumns * kPanelRows * 2;
  if (layout.code_order == CodeOrder::kRowLanes) return tile + k / 2 * 64 + 4 * lane + k % 2 * 2;
  return tile + lane * 64 + 2 * k;
}

}  // namespace

void place_codes(const PanelLayout& layout, const std::uint8_t* codes, int lane, std::uint8_t* panel) {
  const int low_bits = low_plane_bits(layout.bits);
  for (std::int64_t block = 0; block < layout.blocks; ++block, codes += kBlockColumns) {
    std::uint8_t* plane = panel + block * 64 * layout.bits;
    each_field(layout, low_bits, lane, plane, [&](int k, const auto& field) {
      field.put(static_cast<std::uint8_t>(codes[k] & ((1u << low_bits) - 1)));
    });
    if (low_bits == layout.bits) continue;
    each_field(layout, layout.bits - low_bits, lane, plane + 64 * low_bits,
               [&](int k, const auto& field) { field.put(static_cast<std::uint8_t>(codes[k] >> low_bits)); });
  }
}

void place_bf16(const PanelLayout& layout, const std::uint16_t* values, int lane, std::uint8_t* panel) {
  for (std::int64_t block = 0; block < layout.blocks; ++block, values += kBlockColumns) {
    for (int k = 0; k < kBlockColumns; ++k) std::memcpy(panel + bf16_place(layout, block, k, lane), values + k, 2);
  }
}

void read_block_codes(const PanelLayout& layout, const std::uint8_t* panel, std::int64_t block, int lane,
                      std::uint8_t* codes) {
  const int low_bits = low_plane_bits(layout.bits);
  const std::uint8_t* plane = panel + block * 64 * layout.bits;
  each_field(layout, low_bits, lane, plane, [&](int k, const auto& field) { codes[k] = field.get(); });
  if (low_bits == layout.bits) return;
  each_field(layout, layout.bits - low_bits, lane, plane + 64 * low_bits, [&](int k, const auto& field) {
    codes[k] = static_cast<std::uint8_t>(codes[k] | (field.get() << low_bits));
  });
}

void read_block_bf16(const PanelLayout& layout, const std::uint8_t* panel, std::int64_t block, int lane,
                     std::uint16_t* values) {
  for (int k = 0; k < kBlockColumns; ++k) std::memcpy(values + k, panel + bf16_place(layout, block, k, lane), 2);
}

}  // namespace tensorfold::ops::cpu
