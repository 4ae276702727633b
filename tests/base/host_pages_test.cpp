// Pages are zero, belong to one owner, and memory that isn't there is an exception.
#include "base/host_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <new>
#include <utility>

namespace tensorfold {
namespace {

TEST(HostPages, AreZeroAndWritable) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4097}, (std::size_t{2} << 20) + 5}) {
    const HostPages pages(bytes);
    ASSERT_EQ(pages.size(), bytes);
    EXPECT_TRUE(std::all_of(pages.data(), pages.data() + bytes, [](std::byte value) { return value == std::byte{0}; }));
    pages.data()[0] = pages.data()[bytes - 1] = std::byte{7};
    EXPECT_EQ(pages.data()[bytes - 1], std::byte{7});
  }
}

TEST(HostPages, OfNothingAreNone) {
  const HostPages none, also_none(0);
  EXPECT_EQ(none.data(), nullptr);
  EXPECT_EQ(also_none.data(), nullptr);
  EXPECT_EQ(also_none.size(), 0u);
}

TEST(HostPages, HaveOneOwner) {
  HostPages first(100);
  std::byte* const data = first.data();
  data[99] = std::byte{3};
  HostPages second(std::move(first));
  EXPECT_EQ(first.data(), nullptr);
  EXPECT_EQ(first.size(), 0u);
  EXPECT_EQ(second.data(), data);
  HostPages third(50);
  third = std::move(second);
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(third.size(), 100u);
  EXPECT_EQ(third.data()[99], std::byte{3});
}

TEST(HostPages, ThatThereAreNoneOfThrow) {
  EXPECT_THROW(HostPages(SIZE_MAX / 2), std::bad_alloc);
}

}  // namespace
}  // namespace tensorfold
