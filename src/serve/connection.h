// One client connection as a coroutine on its own strand. All of its waiting goes through one timer that any completion
// cancels, so that a single place knows every deadline and the reader keeps watching the socket while a reply is made:
// a client that leaves is seen whether its request is queued, in its prompt or in its reply, and bytes it has pipelined
// are kept. Included by server.cpp and connection.cpp only (Asio is slow to compile).
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "serve/handlers.h"
#include "serve/host_check.h"
#include "serve/http_parser.h"
#include "serve/server.h"

namespace tensorfold {

class Connection;

/// What all connections share.
struct ServerState {
  ServerState(ServerOptions server_options, ApiKeys api_keys)
      : options(std::move(server_options)),
        keys(std::move(api_keys)),
        hosts(options.host, options.allowed_hosts),
        workers(static_cast<std::size_t>(options.worker_threads)),
        large_body_workers(static_cast<std::size_t>(options.large_body_threads)) {}

  ServerOptions options;
  ApiKeys keys;
  HostCheck hosts;
  boost::asio::io_context io;
  boost::asio::thread_pool workers;
  boost::asio::thread_pool large_body_workers;
  std::atomic<bool> draining{false};
  std::atomic<bool> stopping{false};
  std::atomic<int> generating{0};

  std::mutex mutex;
  std::condition_variable changed;  // connections or generating went down
  std::shared_ptr<const ServedModel> model;
  std::map<Connection*, std::weak_ptr<Connection>> connections;

  std::shared_ptr<const ServedModel> current_model() {
    std::lock_guard lock(mutex);
    return model;
  }
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(boost::asio::ip::tcp::socket socket, ServerState& server);
  ~Connection();
  void start();
  /// Any thread: look at the server's flags again.
  void nudge();
  /// Any thread: close the socket at once; what runs ends as if the client had left.
  void abort();

 private:
  using Clock = std::chrono::steady_clock;
  template <typename T>
  using Task = boost::asio::awaitable<T>;

  Task<void> run();
  Task<bool> serve_one();
  Task<bool> read_head(HttpRequestParser& parser);
  Task<bool> read_body(HttpRequestParser& parser);
  Task<bool> answer(HttpRequestParser& parser, RouteMatch match);
  Task<bool> respond(const HttpRequest& request, HttpResponse response, bool keep_alive);
  Task<bool> refuse_framing(HttpRequestParser& parser, int status, std::string message);
  Task<HttpResponse> plain_reply(const HttpRequest& request, RouteMatch match);
  Task<bool> generate(const HttpRequest& request, RouteMatch match, bool keep_alive);
  Task<bool> stream_reply(const HttpRequest& request, Exchange& exchange, bool keep_alive);
  Task<bool> whole_reply(const HttpRequest& request, Exchange& exchange, bool keep_alive);
  Task<void> linger();

  /// Sleeps until notify() or the deadline.
  Task<void> wait(Clock::time_point deadline);
  /// `body_bytes` chooses the pool: a large body's work may take long.
  Task<void> on_worker(std::size_t body_bytes, std::function<void()> work);
  /// False when the client left or didn't read for too long.
  Task<bool> write(std::string bytes);

  void notify();
  void want_input();
  void close_socket();
  /// Cancels the running reply when the client has left or too much of it waits to be read. True when it has.
  bool cancel_if_gone();
  std::string head(const HttpRequest& request, const HttpResponse& response, std::size_t body_bytes, bool chunked,
                   bool keep_alive) const;
  void log_access(const HttpRequest& request, int status) const;

  boost::asio::ip::tcp::socket socket_;
  ServerState& server_;
  boost::asio::steady_timer wake_;
  std::string peer_;
  bool notified_ = false;
  bool reading_ = false;
  bool peer_closed_ = false;
  bool writing_ = false;
  bool write_failed_ = false;
  bool worker_done_ = false;
  Generation* generation_ = nullptr;  // the reply being made, if any
  std::array<char, 16384> read_buffer_{};
  std::string input_;
  std::string output_;
};

}  // namespace tensorfold
