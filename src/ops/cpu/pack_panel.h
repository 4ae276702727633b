// Where a row's codes lie in a panel (linear_layout.h), in both orders: placing them at load and reading single ones
// back for embedding lookups. One file holds both directions, so that they can't drift apart.
#pragma once

#include <cstdint>

#include "ops/cpu/linear_layout.h"

namespace tensorfold::ops::cpu {

/// Puts row `lane`'s codes, all blocks of them, into a panel that was zero there.
void place_codes(const PanelLayout& layout, const std::uint8_t* codes, int lane, std::uint8_t* panel);
void place_bf16(const PanelLayout& layout, const std::uint16_t* values, int lane, std::uint8_t* panel);

/// Row `lane`'s codes of one block of 32 k.
void read_block_codes(const PanelLayout& layout, const std::uint8_t* panel, std::int64_t block, int lane,
                      std::uint8_t* codes);
void read_block_bf16(const PanelLayout& layout, const std::uint8_t* panel, std::int64_t block, int lane,
                     std::uint16_t* values);

}  // namespace tensorfold::ops::cpu
