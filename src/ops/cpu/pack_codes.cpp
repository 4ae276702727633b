#include "ops/cpu/pack_codes.h"

#include <cstring>

#include "base/bf16.h"
#include "base/error.h"
#include "ops/cpu/pack_half.h"

namespace tensorfold::ops::cpu {
namespace {

void read_affine_codes(const WeightView& view, const std::uint8_t* row, std::uint8_t* codes) {
  // A little-endian bit stream; columns are a multiple of 32, so it ends on a word border.
  const unsigned bits = static_cast<unsigned>(view.bits);
  const std::uint32_t code_mask = (1u << bits) - 1;
  std::uint64_t window = 0;
  unsigned filled = 0;
  for (std::int64_t k = 0; k < view.columns; ++k) {
    if (filled < bits) {
      std::uint32_t word = 0;
      std::memcpy(&word, row, sizeof word);
      row += sizeof word;
      window |= static_cast<std::uint64_t>(word) << filled;
      filled += 32;
    }
    codes[k] = static_cast<std::uint8_t>(window & code_mask);
    window >>= bits;
    filled -= bits;
  }
}

// Nibbles of a 32-block: the low half of byte i is element i, the high half element i + 16.
void read_split_nibbles(const std::uint8_t* bytes, std::uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = bytes[i] & 15;
    codes[i + 16] = bytes[i] >> 4;
  }
}

void add_fifth_bits(const std::uint8_t* bytes, std::uint8_t* codes) {
  std::uint32_t high = 0;
  std::memcpy(&high, bytes, sizeof high);
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<std::uint8_t>(codes[i] | (((high >> i) & 1) << 4));
}

void read_q4_k_nibbles(const std::uint8_t* bytes, std::uint8_t* codes) {
  for (int run = 0; run < 4; ++run) {
    for (int i = 0; i < 32; ++i) {
      codes[64 * run + i] = bytes[32 * run + i] & 15;
      codes[64 * run + 32 + i] = bytes[32 * run + i] >> 4;
    }
  }
}

void read_q5_k(const std::uint8_t* block, std::uint8_t* codes) {
  const std::uint8_t* high = block + 16;
  read_q4_k_nibbles(block + 48, codes);
  for (int sub = 0; sub < 8; ++sub) {
    for (int i = 0; i < 32; ++i) {
      codes[32 * sub + i] = static_cast<std::uint8_t>(codes[32 * sub + i] | (((high[i] >> sub) & 1) << 4));
    }
  }
}

void read_q6_k(const std::uint8_t* block, std::uint8_t* codes) {
  for (int half = 0; half < 2; ++half) {
    const std::uint8_t* low = block + 64 * half;
    const std::uint8_t* high = block + 128 + 32 * half;
    std::uint8_t* out = codes + 128 * half;
    for (int i = 0; i < 32; ++i) {
      out[i] = static_cast<std::uint8_t>((low[i] & 15) | ((high[i] & 3) << 4));
      out[i + 32] = static_cast<std::uint8_t>((low[i + 32] & 15) | (((high[i] >> 2) & 3) << 4));
      out[i + 64] = static_cast<std::uint8_t>((low[i] >> 4) | (((high[i] >> 4) & 3) << 4));
      out[i + 96] = static_cast<std::uint8_t>((low[i + 32] >> 4) | (((high[i] >> 6) & 3) << 4));
    }
  }
}

void read_block_codes(WeightFormat format, const std::uint8_t* block, std::uint8_t* codes) {
  switch (format) {
    case WeightFormat::kQ4_0:
      read_split_nibbles(block + 2, codes);
      return;
    case WeightFormat::kQ4_1:
      read_split_nibbles(block + 4, codes);
      return;
    case WeightFormat::kQ5_0:
      read_split_nibbles(block + 6, codes);
      add_fifth_bits(block + 2, codes);
      return;
    case WeightFormat::kQ5_1:
      read_split_nibbles(block + 8, codes);
      add_fifth_bits(block + 4, codes);
      return;
    case WeightFormat::kQ8_0:
      for (int i = 0; i < 32; ++i) codes[i] = static_cast<std::uint8_t>(block[2 + i] ^ 0x80u);
      return;
    case WeightFormat::kQ4_K:
      read_q4_k_nibbles(block + 16, codes);
      return;
    case WeightFormat::kQ5_K:
      read_q5_k(block, codes);
      return;
    case WeightFormat::kQ6_K:
      read_q6_k(block, codes);
      return;
    default:
      TF_ASSERT(false && "not a block format");
  }
}

}  // namespace

std::int64_t stored_row_bytes(const WeightView& view) {
  if (view.format == WeightFormat::kAffine) return view.columns * view.bits / 8;
  const BlockShape shape = weight_format_block(view.format);
  return view.columns / shape.elements * shape.bytes;
}

void read_codes(const WeightView& view, const std::byte* row, std::uint8_t* codes) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(row);
  if (view.format == WeightFormat::kAffine) return read_affine_codes(view, bytes, codes);
  const BlockShape shape = weight_format_block(view.format);
  for (std::int64_t k = 0; k < view.columns; k += shape.elements, bytes += shape.bytes) {
    read_block_codes(view.format, bytes, codes + k);
  }
}

void read_bf16(const WeightView& view, const std::byte* row, std::uint16_t* values) {
  for (std::int64_t k = 0; k < view.columns; ++k) {
    float value = 0.0f;
    if (view.format == WeightFormat::kF32) {
      std::memcpy(&value, row + 4 * k, sizeof value);
    } else {
      std::uint16_t bits = 0;
      std::memcpy(&bits, row + 2 * k, sizeof bits);
      value = view.format == WeightFormat::kF16 ? half_to_float(bits) : to_float(Bf16{bits});
    }
    values[k] = to_bf16(value).bits;
  }
}

}  // namespace tensorfold::ops::cpu
