// See linear_source.h.
#include "ops/linear_source.h"

#include <algorithm>
#include <cstring>

#include "base/bf16.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/stored_numbers.h"

namespace tensorfold::ops {
namespace {

// Eight codes a pack of `bits` bytes, least significant bit first; columns are a multiple of 32.
template <int bits>
void read_affine_packs(const std::uint8_t* row, std::int64_t columns, std::uint8_t* codes) {
  for (std::int64_t k = 0; k < columns; k += 8, row += bits) {
    std::uint64_t pack = load_eight_codes<bits>(row);
    if constexpr (bits == 4) {
      // Nibble i to byte i.
      pack = (pack | pack << 16) & 0x0000ffff0000ffffu;
      pack = (pack | pack << 8) & 0x00ff00ff00ff00ffu;
      pack = (pack | pack << 4) & 0x0f0f0f0f0f0f0f0fu;
      std::memcpy(codes + k, &pack, sizeof pack);
    } else if constexpr (bits == 8) {
      std::memcpy(codes + k, &pack, sizeof pack);
    } else {
      for (int i = 0; i < 8; ++i) codes[k + i] = static_cast<std::uint8_t>(pack >> (bits * i) & ((1u << bits) - 1));
    }
  }
}

void read_affine_codes(const WeightView& view, const std::uint8_t* row, std::uint8_t* codes) {
  switch (view.bits) {
    case 2:
      return read_affine_packs<2>(row, view.columns, codes);
    case 3:
      return read_affine_packs<3>(row, view.columns, codes);
    case 4:
      return read_affine_packs<4>(row, view.columns, codes);
    case 5:
      return read_affine_packs<5>(row, view.columns, codes);
    case 6:
      return read_affine_packs<6>(row, view.columns, codes);
    default:
      return read_affine_packs<8>(row, view.columns, codes);
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

bool is_plain(WeightFormat format) {
  return format == WeightFormat::kF32 || format == WeightFormat::kF16 || format == WeightFormat::kBF16;
}

int column_multiple(const WeightView& view) {
  if (view.format == WeightFormat::kAffine) return view.group_size;
  return weight_format_block(view.format).elements;
}

void check_affine(const WeightView& view) {
  constexpr int kBits[] = {2, 3, 4, 5, 6, 8};
  constexpr int kGroups[] = {32, 64, 128};
  if (std::find(std::begin(kBits), std::end(kBits), view.bits) == std::end(kBits) ||
      std::find(std::begin(kGroups), std::end(kGroups), view.group_size) == std::end(kGroups) ||
      !is_plain(view.scale_format) || view.scales == nullptr || view.biases == nullptr) {
    fail(ErrorCode::kInvalidCheckpoint,
         "{}: affine weights need 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128 with scales and biases; this one "
         "has {} bits in groups of {}",
         view.name, view.bits, view.group_size);
  }
}

void check_view(const WeightView& view) {
  if (view.format == WeightFormat::kAffine) check_affine(view);
  const bool in_range = view.experts >= 1 && view.experts <= limits::kExpertCountMax && view.rows >= 1 &&
                        view.rows <= limits::kVocabularySizeMax && view.columns >= 1 &&
                        view.columns <= limits::kIntermediateSizeMax;
  if (!in_range || view.columns % column_multiple(view) != 0 || view.data == nullptr) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: {} experts of shape [{}, {}] can't be stored as {}", view.name,
         view.experts, view.rows, view.columns, weight_format_name(view.format));
  }
  // In range: at most 2^12 · 2^21 · 2^22 bytes.
  const std::int64_t expected = view.experts * view.rows * stored_row_bytes(view);
  if (view.data_bytes != static_cast<std::size_t>(expected)) {
    fail(ErrorCode::kInvalidCheckpoint,
         "{}: shape [{}, {}] as {} takes {} bytes, the file has {}; fetch the file again", view.name, view.rows,
         view.columns, weight_format_name(view.format), expected, view.data_bytes);
  }
}

}  // namespace

void check_linear_source(const LinearSource& source) {
  if (source.parts.empty())
    fail(ErrorCode::kInvalidArgument, "{}: a linear layer needs at least one part", source.name);
  const WeightView& first = source.parts.front();
  std::int64_t rows = 0;
  for (const WeightView& part : source.parts) {
    check_view(part);
    if (part.columns != first.columns || part.experts != first.experts) {
      fail(ErrorCode::kInvalidCheckpoint, "{}: {} has {} columns and {} experts, but {} has {} and {}", source.name,
           part.name, part.columns, part.experts, first.name, first.columns, first.experts);
    }
    rows += part.rows;
  }
  if (!source.bias.empty() && (first.experts != 1 || static_cast<std::int64_t>(source.bias.size()) != rows)) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: {} biases for {} experts of {} output rows", source.name,
         source.bias.size(), first.experts, rows);
  }
  if (!source.row_orders.empty() && source.row_orders.size() != source.parts.size()) {
    fail(ErrorCode::kInvalidArgument, "{}: {} row orders for {} parts", source.name, source.row_orders.size(),
         source.parts.size());
  }
  for (std::size_t i = 0; i < source.row_orders.size(); ++i) {
    const auto& order = source.row_orders[i];
    const std::int64_t part_rows = source.parts[i].rows;
    const bool valid = std::all_of(order.begin(), order.end(), [&](std::int32_t r) { return r >= 0 && r < part_rows; });
    if (!valid || (!order.empty() && static_cast<std::int64_t>(order.size()) != part_rows)) {
      fail(ErrorCode::kInvalidArgument, "{}: the row order of {} doesn't name {} stored rows", source.name,
           source.parts[i].name, part_rows);
    }
  }
}

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

}  // namespace tensorfold::ops
