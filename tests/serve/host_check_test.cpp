// Which Host headers a server answers to.
#include "serve/host_check.h"

#include <gtest/gtest.h>

namespace tensorfold {
namespace {

TEST(HostCheck, LoopbackBoundAndAllowedNames) {
  const HostCheck check("192.168.1.5", {"models.example"});
  for (const char* good : {"", "localhost", "LOCALHOST:8080", "127.0.0.1", "127.9.9.9:1", "[::1]:8080", "::1", "192.168.1.5",
                           "192.168.1.5:8080", "models.example:443", "Models.Example"}) {
    EXPECT_TRUE(check.allows(good)) << good;
  }
  for (const char* bad : {"evil.example", "localhost.evil.example", "192.168.1.6", "[::2]", "127.0.0.1.evil.example",
                          "models.example.evil", "[::1", ":8080"}) {
    EXPECT_FALSE(check.allows(bad)) << bad;
  }
}

TEST(HostCheck, EveryAddressButNoNameWhenBoundToAll) {
  const HostCheck check("0.0.0.0", {});
  EXPECT_TRUE(check.allows("10.1.2.3:8080"));
  EXPECT_TRUE(check.allows("[fe80::1]:8080"));
  EXPECT_FALSE(check.allows("evil.example"));
}

}  // namespace
}  // namespace tensorfold
