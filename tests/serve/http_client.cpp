// See http_client.h.
#include "serve/http_client.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

namespace tensorfold::testing {

HttpClient::HttpClient(std::uint16_t port) {
  socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    throw std::runtime_error("cannot connect");
  }
  const timeval patience{60, 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
}

HttpClient::~HttpClient() {
  if (socket_ >= 0) ::close(socket_);
}

void HttpClient::send(const std::string& bytes) {
  std::size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t count = ::send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) return;  // the server may close early; the reply tells
    sent += static_cast<std::size_t>(count);
  }
}

bool HttpClient::fill() {
  char bytes[16384];
  const ssize_t count = ::recv(socket_, bytes, sizeof(bytes), 0);
  if (count <= 0) return false;
  buffer_.append(bytes, static_cast<std::size_t>(count));
  return true;
}

std::string HttpClient::receive_until(const std::string& marker) {
  while (buffer_.find(marker) == std::string::npos) {
    if (!fill()) return std::exchange(buffer_, {});
  }
  const std::size_t end = buffer_.find(marker) + marker.size();
  const std::string taken = buffer_.substr(0, end);
  buffer_.erase(0, end);
  return taken;
}

std::optional<Reply> HttpClient::receive() {
  Reply reply;
  reply.head = receive_until("\r\n\r\n");
  if (reply.head.size() < 16 || reply.head.compare(0, 9, "HTTP/1.1 ") != 0) return std::nullopt;
  reply.status = std::atoi(reply.head.c_str() + 9);
  const std::size_t length_at = reply.head.find("Content-Length: ");
  if (length_at != std::string::npos) {
    const auto length = static_cast<std::size_t>(std::atoll(reply.head.c_str() + length_at + 16));
    while (buffer_.size() < length && fill()) continue;
    reply.body = buffer_.substr(0, length);
    buffer_.erase(0, length);
    return reply;
  }
  if (reply.head.find("Transfer-Encoding: chunked") == std::string::npos) {
    if (reply.status == 100) return reply;
    while (fill()) continue;
    reply.body = std::exchange(buffer_, {});
    return reply;
  }
  for (;;) {
    const std::string line = receive_until("\r\n");
    const auto size = static_cast<std::size_t>(std::strtoull(line.c_str(), nullptr, 16));
    while (buffer_.size() < size + 2 && fill()) continue;
    if (buffer_.size() < size + 2) return reply;
    reply.body += buffer_.substr(0, size);
    buffer_.erase(0, size + 2);
    if (size == 0) return reply;
  }
}

bool HttpClient::closed_by_server() {
  if (!buffer_.empty()) return false;
  char byte = 0;
  return ::recv(socket_, &byte, 1, 0) == 0;
}

void HttpClient::half_close() {
  ::shutdown(socket_, SHUT_WR);
}

void HttpClient::reset() {
  const linger immediately{1, 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &immediately, sizeof(immediately));
  ::close(socket_);
  socket_ = -1;
}

std::string post(const std::string& path, const std::string& body, const std::string& extra_headers) {
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{}\r\n{}", path,
      body.size(), extra_headers, body);
}

std::string get(const std::string& path, const std::string& extra_headers) {
  return fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\n{}\r\n", path, extra_headers);
}

Reply ask(std::uint16_t port, const std::string& request) {
  HttpClient client(port);
  client.send(request);
  return client.receive().value_or(Reply{});
}

}  // namespace tensorfold::testing
