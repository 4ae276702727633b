// CRC-32: published check values, and that pieces chain to the whole at every cut.
#include "base/crc32.h"

#include <gtest/gtest.h>

#include <string>

namespace tensorfold {
namespace {

TEST(Crc32, MeetsPublishedValues) {
  EXPECT_EQ(crc32("", 0), 0u);
  EXPECT_EQ(crc32("123456789", 9), 0xCBF43926u);
  EXPECT_EQ(crc32("The quick brown fox jumps over the lazy dog", 43), 0x414FA339u);
}

TEST(Crc32, ChainsAtEveryCut) {
  std::string bytes;
  for (int i = 0; i < 100; ++i) bytes.push_back(static_cast<char>(i * 37 + 11));
  const std::uint32_t whole = crc32(bytes.data(), bytes.size());
  for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
    EXPECT_EQ(crc32(bytes.data() + cut, bytes.size() - cut, crc32(bytes.data(), cut)), whole) << cut;
  }
}

TEST(Crc32, SeesEveryFlippedBit) {
  std::string bytes(33, 'x');
  const std::uint32_t whole = crc32(bytes.data(), bytes.size());
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    EXPECT_NE(crc32(bytes.data(), bytes.size()), whole) << bit;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
  }
}

}  // namespace
}  // namespace tensorfold
