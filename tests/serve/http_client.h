// A blocking test client over plain sockets, so that tests can send what no HTTP library would.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace tensorfold::testing {

struct Reply {
  int status = 0;
  std::string head;
  std::string body;  // chunked bodies are joined
  nlohmann::json json() const { return nlohmann::json::parse(body, nullptr, false); }
  bool closes() const { return head.find("Connection: close") != std::string::npos; }
};

class HttpClient {
 public:
  explicit HttpClient(std::uint16_t port);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  void send(const std::string& bytes);
  /// The next reply, or nothing when the server closed the connection first (or a minute went by).
  std::optional<Reply> receive();
  /// Bytes until `marker` has been seen.
  std::string receive_until(const std::string& marker);
  /// True when the server closes within a minute without another byte.
  bool closed_by_server();
  void half_close();
  void reset();  // closes with RST

 private:
  bool fill();
  int socket_ = -1;
  std::string buffer_;
};

std::string post(const std::string& path, const std::string& body, const std::string& extra_headers = "");
std::string get(const std::string& path, const std::string& extra_headers = "");
/// One request on a connection of its own.
Reply ask(std::uint16_t port, const std::string& request);

}  // namespace tensorfold::testing
