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

class ApiKeys {
 public:
  /// Labels "cli-1", "env-1", ... in order. Throws Error(kUnsupported) for an empty key or one that holds whitespace or
  /// control characters (the message never contains the key).
  void add_flag_keys(const std::vector<std::string>& keys);
  /// A comma-separated list; surrounding blanks are trimmed, empty entries skipped.
  void add_environment_keys(std::string_view list);

  bool required() const { return !entries_.empty(); }
  /// The label of the key that authorises the request, or nothing. "-" when no key is required.
  std::optional<std::string> authorise(const HttpRequest& request) const;
  /// What the key of that label stands for wherever data is kept apart by key, in memory and on disk: the same for the same
  /// key whatever its label, and no way back to the key. "-" for the label "-".
  std::string scope(const std::string& label) const;

 private:
  struct Entry {
    std::string label;
    Sha256Digest digest;
  };
  void add(std::string label, std::string_view key);
  std::vector<Entry> entries_;
};

}  // namespace tensorfold
