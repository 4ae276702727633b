// API keys: who may ask, and under which label. Only SHA-256 digests are kept, and every digest is compared in constant
// time for each request, so that neither memory nor timing gives a key away (api.md 5.1).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http_message.h"

namespace tensorfold {

using Sha256Digest = std::array<std::uint8_t, 32>;
Sha256Digest sha256(std::string_view bytes);
/// Lower-case hex of the first `digits` digits.
std::string sha256_hex(std::string_view bytes, std::size_t digits = 64);
/// `digits` random hex digits from the operating system's source.
std::string random_hex(std::size_t digits);
std::uint64_t random_u64();

/// Whose key it was.
struct KeyHolder {
  std::string label;  // for logs: by place, so it may name another key after a restart
  std::string scope;  // for what is kept per key, on disk too: the same for the same key whatever its place, and no key
};

class ApiKeys {
 public:
  /// Labels "cli-1", "env-1", ... in order. Throws Error(kUnsupported) for an empty key or one that holds whitespace or
  /// control characters (the message never contains the key).
  void add_flag_keys(const std::vector<std::string>& keys);
  /// A comma-separated list; surrounding blanks are trimmed, empty entries skipped.
  void add_environment_keys(std::string_view list);

  bool required() const { return !entries_.empty(); }
  /// The holder of the key that authorises the request, or nothing. Both are "-" when no key is required.
  std::optional<KeyHolder> authorise(const HttpRequest& request) const;

 private:
  struct Entry {
    KeyHolder holder;
    Sha256Digest digest;
  };
  void add(std::string label, std::string_view key);
  std::vector<Entry> entries_;
};

}  // namespace tensorfold
