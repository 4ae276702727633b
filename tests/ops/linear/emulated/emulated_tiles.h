// AMX tiles in plain C++: configuration with the checks that the processor makes, loads, stores, and TDPBF16PS in the
// order that was measured on it (one-arithmetic.md). Denormals are flushed whatever the thread's mode.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace tensorfold::emulated {

class Tiles {
 public:
  void configure(const void* config) {
    const auto* bytes = static_cast<const std::uint8_t*>(config);
    check(bytes[0] == 1 && bytes[1] == 0);
    std::memcpy(row_bytes_, bytes + 16, sizeof row_bytes_);
    std::memcpy(rows_, bytes + 48, sizeof rows_);
    for (int tile = 0; tile < 8; ++tile) {
      check(rows_[tile] >= 1 && rows_[tile] <= 16 && row_bytes_[tile] >= 1 && row_bytes_[tile] <= 64);
    }
    std::memset(data_, 0, sizeof data_);
    configured_ = true;
  }
  void release() { configured_ = false; }

  void zero(int tile) {
    check(configured_);
    std::memset(data_[tile], 0, sizeof data_[tile]);
  }
  void load(int tile, const void* from, std::int64_t stride) {
    zero(tile);
    const auto* bytes = static_cast<const std::uint8_t*>(from);
    for (int row = 0; row < rows_[tile]; ++row) std::memcpy(data_[tile][row], bytes + row * stride, row_bytes_[tile]);
  }
  void store(int tile, void* to, std::int64_t stride) const {
    check(configured_);
    auto* bytes = static_cast<std::uint8_t*>(to);
    for (int row = 0; row < rows_[tile]; ++row) std::memcpy(bytes + row * stride, data_[tile][row], row_bytes_[tile]);
  }

  void multiply(int sums, int a, int b) {
    check(configured_ && rows_[sums] == rows_[a] && row_bytes_[sums] == row_bytes_[b] && row_bytes_[a] == 4 * rows_[b]);
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8040u);
    asm volatile("" ::: "memory");
    for (int row = 0; row < rows_[sums]; ++row) {
      for (int column = 0; column < row_bytes_[sums] / 4; ++column) multiply_one(sums, a, b, row, column);
    }
    asm volatile("" ::: "memory");
    _mm_setcsr(mode);
  }

 private:
  static void check(bool valid) {
    if (!valid) __builtin_trap();
  }
  float element(int tile, int row, int word) const {
    std::uint16_t bits = 0;
    std::memcpy(&bits, data_[tile][row] + 2 * word, sizeof bits);
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
  }
  void multiply_one(int sums, int a, int b, int row, int column) {
    float even = 0.0f;
    float odd = 0.0f;
    for (int pair = 0; pair < rows_[b]; ++pair) {
      even = __builtin_fmaf(element(a, row, 2 * pair), element(b, pair, 2 * column), even);
      odd = __builtin_fmaf(element(a, row, 2 * pair + 1), element(b, pair, 2 * column + 1), odd);
    }
    float sum = 0.0f;
    std::memcpy(&sum, data_[sums][row] + 4 * column, sizeof sum);
    sum = sum + (even + odd);
    std::memcpy(data_[sums][row] + 4 * column, &sum, sizeof sum);
  }

  alignas(64) std::uint8_t data_[8][16][64];
  std::uint16_t row_bytes_[8];
  std::uint8_t rows_[8];
  bool configured_ = false;
};

inline thread_local Tiles tiles;

}  // namespace tensorfold::emulated

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig(config) ::tensorfold::emulated::tiles.configure(config)
#define _tile_release() ::tensorfold::emulated::tiles.release()
#define _tile_zero(tile) ::tensorfold::emulated::tiles.zero(tile)
#define _tile_loadd(tile, from, stride) ::tensorfold::emulated::tiles.load(tile, from, stride)
#define _tile_stored(tile, to, stride) ::tensorfold::emulated::tiles.store(tile, to, stride)
#define _tile_dpbf16ps(sums, a, b) ::tensorfold::emulated::tiles.multiply(sums, a, b)
