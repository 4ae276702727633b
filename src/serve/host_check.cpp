// See host_check.h.
#include "serve/host_check.h"

#include <arpa/inet.h>

#include <algorithm>

#include "serve/http_message.h"

namespace tensorfold {
namespace {

// "name:port", "[v6]:port", "name" -> the name; a header that is none of these -> "".
std::string name_of(std::string_view header) {
  if (!header.empty() && header.front() == '[') {
    const auto end = header.find(']');
    return end == std::string_view::npos ? std::string() : std::string(header.substr(1, end - 1));
  }
  const auto colon = header.find(':');
  if (colon != std::string_view::npos && header.find(':', colon + 1) != std::string_view::npos) {
    return std::string(header);  // an IPv6 address without brackets
  }
  return std::string(header.substr(0, colon));
}

bool is_ipv4(const std::string& name, std::uint32_t& address) {
  in_addr parsed{};
  if (inet_pton(AF_INET, name.c_str(), &parsed) != 1) return false;
  address = ntohl(parsed.s_addr);
  return true;
}

bool is_ipv6(const std::string& name) {
  in6_addr parsed{};
  return inet_pton(AF_INET6, name.c_str(), &parsed) == 1;
}

bool is_loopback(const std::string& name) {
  std::uint32_t address = 0;
  if (is_ipv4(name, address)) return address >> 24 == 127;
  return name == "::1" || equals_ignoring_case(name, "localhost");
}

}  // namespace

HostCheck::HostCheck(std::string bound, std::vector<std::string> allowed)
    : bound_(std::move(bound)), allowed_(std::move(allowed)) {
  bound_to_all_ = bound_ == "0.0.0.0" || bound_ == "::";
}

bool HostCheck::allows(std::string_view header) const {
  if (header.empty()) return true;
  const std::string name = name_of(header);
  if (is_loopback(name) || equals_ignoring_case(name, bound_)) return true;
  std::uint32_t address = 0;
  if (bound_to_all_ && (is_ipv4(name, address) || is_ipv6(name))) return true;
  return std::any_of(allowed_.begin(), allowed_.end(),
                     [&](const std::string& allowed) { return equals_ignoring_case(name, allowed); });
}

}  // namespace tensorfold
