// Key holders: a label names a key by its place, a scope by what it is.
#include "serve/api_keys.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace tensorfold {
namespace {

KeyHolder holder_of(const ApiKeys& keys, const std::string& key) {
  HttpRequest request;
  request.headers.push_back({"authorization", "Bearer " + key});
  const std::optional<KeyHolder> holder = keys.authorise(request);
  EXPECT_TRUE(holder.has_value());
  return holder.value_or(KeyHolder{});
}

TEST(ApiKeysTest, AScopeStaysWithItsKeyWhateverItsPlace) {
  ApiKeys before, after;
  before.add_flag_keys({"alpha", "beta"});
  after.add_flag_keys({"gamma", "beta"});
  after.add_environment_keys("alpha");
  EXPECT_EQ(holder_of(before, "alpha").label, "cli-1");
  EXPECT_EQ(holder_of(after, "alpha").label, "env-1");
  EXPECT_EQ(holder_of(after, "gamma").label, "cli-1");
  EXPECT_EQ(holder_of(before, "alpha").scope, holder_of(after, "alpha").scope);
  EXPECT_EQ(holder_of(before, "beta").scope, holder_of(after, "beta").scope);
  EXPECT_NE(holder_of(before, "alpha").scope, holder_of(after, "gamma").scope);
  EXPECT_NE(holder_of(before, "alpha").scope, holder_of(before, "beta").scope);
}

TEST(ApiKeysTest, AListWithoutAKeyIsRefusedByName) {
  for (const char* list : {"", " ", ",", " , ", "\t,,"}) {
    ApiKeys keys;
    try {
      keys.add_environment_keys(list);
      ADD_FAILURE() << "an open server from '" << list << "'";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find("TENSORFOLD_API_KEY"), std::string::npos) << error.what();
    }
  }
  ApiKeys keys;
  keys.add_environment_keys(" , one,");
  EXPECT_TRUE(keys.required());
}

TEST(ApiKeysTest, AScopeSaysNothingOfTheKey) {
  ApiKeys keys;
  keys.add_flag_keys({"secret"});
  const std::string scope = holder_of(keys, "secret").scope;
  EXPECT_EQ(scope.size(), 32u);
  EXPECT_NE(scope, sha256_hex("secret", 32)) << "not the digest that keys are compared by";
  EXPECT_EQ(scope.find("secret"), std::string::npos);
}

TEST(ApiKeysTest, WithoutKeysAllShareOneScope) {
  const std::optional<KeyHolder> holder = ApiKeys().authorise(HttpRequest{});
  ASSERT_TRUE(holder.has_value());
  EXPECT_EQ(holder->label, "-");
  EXPECT_EQ(holder->scope, "-");
}

}  // namespace
}  // namespace tensorfold
