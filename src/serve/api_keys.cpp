// Key digests and their comparison; see api_keys.h.
#include "serve/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

#include "base/error.h"

namespace tensorfold {
namespace {

constexpr char kHexDigits[] = "0123456789abcdef";
constexpr std::size_t kScopeDigits = 32;

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

/// The key a request presents: the bearer token, else x-api-key.
std::string_view presented_key(const HttpRequest& request) {
  const std::string_view authorization = request.single_header("authorization");
  const std::size_t space = authorization.find(' ');
  if (space != std::string_view::npos && equals_ignoring_case(authorization.substr(0, space), "bearer")) {
    return trim(authorization.substr(space + 1));
  }
  return request.single_header("x-api-key");
}

}  // namespace

Sha256Digest sha256(std::string_view bytes) {
  Sha256Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data());
  return digest;
}

std::string sha256_hex(std::string_view bytes, std::size_t digits) {
  const Sha256Digest digest = sha256(bytes);
  std::string hex;
  for (const std::uint8_t byte : digest) {
    hex.push_back(kHexDigits[byte >> 4]);
    hex.push_back(kHexDigits[byte & 15]);
  }
  return hex.substr(0, digits);
}

std::string random_hex(std::size_t digits) {
  std::vector<unsigned char> bytes((digits + 1) / 2);
  if (RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) != 1) {
    fail(ErrorCode::kInternal, "the operating system gives no random bytes");
  }
  std::string hex;
  for (const unsigned char byte : bytes) {
    hex.push_back(kHexDigits[byte >> 4]);
    hex.push_back(kHexDigits[byte & 15]);
  }
  return hex.substr(0, digits);
}

std::uint64_t random_u64() {
  std::uint64_t value = 0;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(&value), sizeof(value)) != 1) {
    fail(ErrorCode::kInternal, "the operating system gives no random bytes");
  }
  return value;
}

void ApiKeys::add(std::string label, std::string_view key) {
  if (key.empty()) fail(ErrorCode::kInvalidArgument, "API key {} is empty: give it at least one character", label);
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= 0x20 || byte == 0x7f) {
      fail(ErrorCode::kInvalidArgument, "API key {} holds whitespace or a control character: remove it", label);
    }
  }
  // Hashed once more and under a name of its own: what is written to disk says nothing about the key.
  std::string scope = sha256_hex("tensorfold owner " + sha256_hex(key), kScopeDigits);
  entries_.push_back({{std::move(label), std::move(scope)}, sha256(key)});
}

void ApiKeys::add_flag_keys(const std::vector<std::string>& keys) {
  for (std::size_t i = 0; i < keys.size(); ++i) add(fmt::format("cli-{}", i + 1), keys[i]);
}

void ApiKeys::add_environment_keys(std::string_view list) {
  int count = 0;
  while (!list.empty()) {
    const std::size_t comma = list.find(',');
    const std::string_view key = trim(list.substr(0, comma));
    if (!key.empty()) add(fmt::format("env-{}", ++count), key);
    if (comma == std::string_view::npos) break;
    list.remove_prefix(comma + 1);
  }
  if (count == 0) {  // whoever set it wants a closed server
    fail(ErrorCode::kInvalidArgument,
         "TENSORFOLD_API_KEY is set but holds no key: give keys separated by commas, or unset it for a server without");
  }
}

std::optional<KeyHolder> ApiKeys::authorise(const HttpRequest& request) const {
  if (entries_.empty()) return KeyHolder{"-", "-"};
  const std::string_view key = presented_key(request);
  if (key.empty()) return std::nullopt;
  const Sha256Digest digest = sha256(key);
  const Entry* match = nullptr;
  // No early exit: the time taken must not depend on which entry matches.
  for (const Entry& entry : entries_) {
    if (CRYPTO_memcmp(entry.digest.data(), digest.data(), digest.size()) == 0) match = &entry;
  }
  if (match == nullptr) return std::nullopt;
  return match->holder;
}

}  // namespace tensorfold
