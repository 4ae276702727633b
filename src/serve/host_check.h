// The Host check (api.md 5.3): which names a request may be addressed to. Without it a web page whose own name is made
// to point at this machine (DNS rebinding) could read a server without keys. Plain strings, no sockets.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tensorfold {

class HostCheck {
 public:
  /// `bound`: the --host value. `allowed`: further names or addresses (--allowed-host), without port.
  HostCheck(std::string bound, std::vector<std::string> allowed);

  /// `header`: the Host header's value, port or not; empty (HTTP/1.0, or none) is allowed, as browsers always send one.
  ///   Allowed are loopback names and addresses, the bound address or name, and the allowed ones. When the server
  ///   listens on every address, any IP address is: a literal address can't be rebound.
  bool allows(std::string_view header) const;

 private:
  std::string bound_;
  std::vector<std::string> allowed_;
  bool bound_to_all_ = false;
};

}  // namespace tensorfold
