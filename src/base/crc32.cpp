// See crc32.h: eight bytes a step through eight tables ("slicing by eight").
#include "base/crc32.h"

#include <array>
#include <bit>
#include <cstring>

namespace tensorfold {
namespace {

constexpr std::uint32_t kPolynomial = 0xEDB88320u;

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1u) != 0 ? kPolynomial : 0u);
    tables[0][byte] = value;
  }
  for (std::size_t byte = 0; byte < 256; ++byte) {
    for (std::size_t table = 1; table < 8; ++table) {
      const std::uint32_t before = tables[table - 1][byte];
      tables[table][byte] = (before >> 8) ^ tables[0][before & 0xffu];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

std::uint32_t crc32(const void* bytes, std::size_t size, std::uint32_t seed) {
  static_assert(std::endian::native == std::endian::little);
  const auto* at = static_cast<const unsigned char*>(bytes);
  std::uint32_t crc = ~seed;
  for (; size >= 8; size -= 8, at += 8) {
    std::uint32_t low = 0, high = 0;
    std::memcpy(&low, at, 4);
    std::memcpy(&high, at + 4, 4);
    low ^= crc;
    crc = kTables[7][low & 0xffu] ^ kTables[6][low >> 8 & 0xffu] ^ kTables[5][low >> 16 & 0xffu] ^
          kTables[4][low >> 24] ^ kTables[3][high & 0xffu] ^ kTables[2][high >> 8 & 0xffu] ^
          kTables[1][high >> 16 & 0xffu] ^ kTables[0][high >> 24];
  }
  for (; size > 0; --size, ++at) crc = (crc >> 8) ^ kTables[0][(crc ^ *at) & 0xffu];
  return ~crc;
}

}  // namespace tensorfold
