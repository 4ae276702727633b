// The HTTP server: listens, keeps connections, and drains. Its face has no socket library in it; everything that needs
// one is behind Impl and in connection.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "serve/api_keys.h"
#include "serve/served_model.h"

namespace tensorfold {

struct ServerOptions {
  std::string host = "127.0.0.1";
  std::vector<std::string> allowed_hosts;  // further Host values that are answered (host_check.h)
  std::uint16_t port = 8080;
  int io_threads = 2;
  int worker_threads = 2;      // for parsing, rendering and tokenizing
  int large_body_threads = 1;  // the same for bodies above small_body_bytes_max: no other request waits for them
  std::size_t small_body_bytes_max = 256u << 10;
  int connections_max = 0;  // 0: limits::kHttpConnectionsMax, fewer when the open-file limit says so
  // The times of api.md 3.1 and 3.5; tests shorten them.
  int idle_seconds = 0;  // 0: the limit's own
  int stalled_seconds = 0;
  int not_reading_seconds = 0;
  double keepalive_seconds = 0;
};

class Server {
 public:
  Server(ServerOptions options, ApiKeys keys);
  ~Server();  // stops at once

  /// Listens and starts answering: 503 "loading" until a model is set. Throws Error(kUnsupported) when the address
  /// can't be resolved or bound.
  void start();
  std::uint16_t port() const;
  std::string base_url() const;
  bool host_is_loopback() const;

  void set_model(std::shared_ptr<const ServedModel> model);

  /// New generation is refused from now on; returns when running replies are done or `seconds` have passed: how many
  /// are still running then.
  int drain(double seconds);
  int running_replies() const;
  /// Running replies end with 503, or an error event where they are streamed.
  void stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Raises the soft open-file limit as far as the hard one allows and returns it.
std::uint64_t raise_open_file_limit();

}  // namespace tensorfold
