// Listening, accepting, draining; see server.h.
#include "serve/server.h"

#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>
#include <thread>

#include "base/error.h"
#include "base/limits.h"
#include "serve/connection.h"

namespace tensorfold {
namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

constexpr std::uint64_t kDescriptorsForOtherUses = 64;
constexpr auto kStopPatience = std::chrono::seconds(10);

ServerOptions with_limits(ServerOptions options) {
  if (options.idle_seconds <= 0) options.idle_seconds = limits::kHttpIdleSecondsMax;
  if (options.stalled_seconds <= 0) options.stalled_seconds = limits::kHttpRequestStalledSecondsMax;
  if (options.not_reading_seconds <= 0) options.not_reading_seconds = limits::kHttpClientNotReadingSecondsMax;
  if (options.keepalive_seconds <= 0) options.keepalive_seconds = limits::kSseKeepaliveSeconds;
  if (options.connections_max <= 0) {
    const std::uint64_t files = raise_open_file_limit();
    const std::uint64_t room = files > 2 * kDescriptorsForOtherUses ? files - kDescriptorsForOtherUses : files / 2;
    options.connections_max =
        static_cast<int>(std::min<std::uint64_t>(room, static_cast<std::uint64_t>(limits::kHttpConnectionsMax)));
  }
  return options;
}

}  // namespace

std::uint64_t raise_open_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  const std::vector<rlim_t> wanted =
      limit.rlim_max == RLIM_INFINITY ? std::vector<rlim_t>{65536, 10240} : std::vector<rlim_t>{limit.rlim_max};
  for (const rlim_t target : wanted) {
    if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur >= target) break;
    rlimit raised = limit;
    raised.rlim_cur = target;
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0) {
      limit = raised;
      break;
    }
  }
  return limit.rlim_cur;
}

class Server::Impl {
 public:
  Impl(ServerOptions options, ApiKeys keys)
      : state(with_limits(std::move(options)), std::move(keys)), acceptor(state.io), work(state.io.get_executor()) {}

  void listen();
  asio::awaitable<void> accept_loop();
  void welcome(tcp::socket socket);
  void stop();

  ServerState state;
  tcp::acceptor acceptor;
  asio::executor_work_guard<asio::io_context::executor_type> work;
  std::vector<std::thread> threads;
  tcp::endpoint endpoint;
};

void Server::Impl::listen() {
  std::signal(SIGPIPE, SIG_IGN);
  boost::system::error_code error;
  tcp::resolver resolver(state.io);
  const auto found = resolver.resolve(state.options.host, std::to_string(state.options.port),
                                      tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error || found.empty()) {
    fail(ErrorCode::kUnsupported, "cannot resolve --host {}: {}; give an IP address or a name of this machine",
         state.options.host, error.message());
  }
  endpoint = found.begin()->endpoint();
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    fail(ErrorCode::kUnsupported, "cannot listen on {} port {}: {}; choose another with --port (0 picks a free one)",
         state.options.host, state.options.port, error.message());
  }
  endpoint = acceptor.local_endpoint();
}

void Server::Impl::welcome(tcp::socket socket) {
  boost::system::error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  bool full = false;
  {
    std::lock_guard lock(state.mutex);
    full = state.connections.size() >= static_cast<std::size_t>(state.options.connections_max);
  }
  if (full) {
    // A short answer that fits the socket's own buffer; nothing waits for it.
    static constexpr std::string_view kBusy =
        "HTTP/1.1 503 Service Unavailable\r\nServer: TensorFold\r\nRetry-After: 5\r\nContent-Length: 0\r\n"
        "Connection: close\r\n\r\n";
    socket.non_blocking(true, ignored);
    socket.write_some(asio::buffer(kBusy), ignored);
    return;
  }
  auto connection = std::make_shared<Connection>(std::move(socket), state);
  {
    std::lock_guard lock(state.mutex);
    state.connections.emplace(connection.get(), connection);
  }
  connection->start();
}

asio::awaitable<void> Server::Impl::accept_loop() {
  while (!state.stopping) {
    auto [error, socket] =
        co_await acceptor.async_accept(asio::make_strand(state.io), asio::as_tuple(asio::use_awaitable));
    if (!error) {
      welcome(tcp::socket(std::move(socket)));
      continue;
    }
    if (error == asio::error::operation_aborted || !acceptor.is_open()) co_return;
    // Out of descriptors, most likely: wait for some to come back instead of spinning.
    spdlog::warn("accept: {}", error.message());
    asio::steady_timer pause(state.io, std::chrono::milliseconds(100));
    co_await pause.async_wait(asio::as_tuple(asio::use_awaitable));
  }
}

void Server::Impl::stop() {
  if (threads.empty()) return;
  state.stopping = true;
  asio::post(state.io, [this] {
    boost::system::error_code ignored;
    acceptor.close(ignored);
  });
  // Held outside the lock: dropping the last reference to a connection takes it.
  std::vector<std::shared_ptr<Connection>> open;
  {
    std::lock_guard lock(state.mutex);
    for (const auto& entry : state.connections) {
      if (auto connection = entry.second.lock()) open.push_back(std::move(connection));
    }
  }
  for (const auto& connection : open) connection->nudge();
  open.clear();
  std::unique_lock lock(state.mutex);
  const auto patience = std::chrono::steady_clock::now() + kStopPatience;
  state.changed.wait_until(lock, patience, [this] { return state.connections.empty(); });
  lock.unlock();
  work.reset();
  state.io.stop();
  for (auto& thread : threads) thread.join();
  threads.clear();
  state.workers.join();
  state.large_body_workers.join();
}

Server::Server(ServerOptions options, ApiKeys keys)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(keys))) {}

Server::~Server() {
  stop();
}

void Server::start() {
  impl_->listen();
  asio::co_spawn(impl_->state.io, impl_->accept_loop(), asio::detached);
  for (int i = 0; i < impl_->state.options.io_threads; ++i) {
    impl_->threads.emplace_back([this] { impl_->state.io.run(); });
  }
}

std::uint16_t Server::port() const {
  return impl_->endpoint.port();
}

std::string Server::base_url() const {
  const auto address = impl_->endpoint.address();
  const std::string host = address.is_v6() ? fmt::format("[{}]", address.to_string()) : address.to_string();
  return fmt::format("http://{}:{}/v1", host, port());
}

bool Server::host_is_loopback() const {
  return impl_->endpoint.address().is_loopback();
}

void Server::set_model(std::shared_ptr<const ServedModel> model) {
  std::lock_guard lock(impl_->state.mutex);
  impl_->state.model = std::move(model);
}

int Server::running_replies() const {
  return impl_->state.generating;
}

int Server::drain(double seconds) {
  ServerState& state = impl_->state;
  state.draining = true;
  std::unique_lock lock(state.mutex);
  state.changed.wait_for(lock, std::chrono::duration<double>(seconds), [&state] { return state.generating == 0; });
  return state.generating;
}

void Server::stop() {
  impl_->stop();
}

}  // namespace tensorfold
