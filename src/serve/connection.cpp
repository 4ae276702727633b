// Reading requests, routing them and writing plain replies; generating replies are in connection_generate.cpp.
#include "serve/connection.h"

#include <poll.h>
#include <spdlog/spdlog.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include "base/limits.h"
#include "serve/api_error.h"

namespace tensorfold {
namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr std::size_t kWritePieceBytes = 256u << 10;
constexpr auto kClientCheckInterval = std::chrono::milliseconds(50);
constexpr auto kEventsCheckInterval =
    std::chrono::seconds(30);                             // the engine's notice may be lost where memory is short
constexpr auto kStopWriteTime = std::chrono::seconds(2);  // for what a client is still told while the server stops
constexpr auto kLingerTime = std::chrono::seconds(2);
constexpr std::size_t kLingerBytesMax = 64u << 20;

}  // namespace

Connection::Connection(asio::ip::tcp::socket socket, ServerState& server)
    : socket_(std::move(socket)), server_(server), wake_(socket_.get_executor()) {
  error_code error;
  const auto endpoint = socket_.remote_endpoint(error);
  peer_ = error ? "unknown" : fmt::format("{}:{}", endpoint.address().to_string(), endpoint.port());
}

Connection::~Connection() {
  std::lock_guard lock(server_.mutex);
  server_.connections.erase(this);
  server_.changed.notify_all();
}

void Connection::start() {
  asio::co_spawn(
      socket_.get_executor(), [self = shared_from_this()] { return self->run(); }, asio::detached);
}

void Connection::nudge() {
  asio::post(socket_.get_executor(), [self = shared_from_this()] { self->notify(); });
}

void Connection::abort() {
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    self->close_socket();
    self->notify();
  });
}

void Connection::notify() {
  notified_ = true;
  wake_.cancel();
}

Connection::Task<void> Connection::wait(Clock::time_point deadline) {
  if (!notified_) {
    if (generation_ != nullptr) {
      const bool asks = input_.size() > limits::kHttpPipelinedBytesMax && !peer_closed_;
      const Clock::duration sleep_max = asks ? Clock::duration(kClientCheckInterval) : kEventsCheckInterval;
      deadline = std::min(deadline, Clock::now() + sleep_max);
    }
    wake_.expires_at(deadline);
    co_await wake_.async_wait(asio::as_tuple(asio::use_awaitable));
  }
  notified_ = false;
}

void Connection::want_input() {
  if (reading_ || peer_closed_) return;
  if (input_.size() > limits::kHttpPipelinedBytesMax) {
    // Nothing more is read ahead, so no read can tell that the client left: the socket is asked.
    pollfd state{socket_.native_handle(), POLLRDHUP, 0};
    peer_closed_ = ::poll(&state, 1, 0) > 0 && (state.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
    return;
  }
  reading_ = true;
  socket_.async_read_some(asio::buffer(read_buffer_), [self = shared_from_this()](error_code error, std::size_t bytes) {
    self->reading_ = false;
    if (error) {
      self->peer_closed_ = true;
    } else {
      self->input_.append(self->read_buffer_.data(), bytes);
    }
    self->notify();
  });
}

void Connection::close_socket() {
  error_code ignored;
  socket_.close(ignored);
  peer_closed_ = true;
}

Connection::Task<void> Connection::on_worker(std::size_t body_bytes, std::function<void()> work) {
  worker_done_ = false;
  const bool small = body_bytes <= server_.options.small_body_bytes_max;
  asio::post(small ? server_.workers : server_.large_body_workers,
             [self = shared_from_this(), &work] {  // `work` lives in this frame until it is done
               work();
               asio::post(self->socket_.get_executor(), [self] {
                 self->worker_done_ = true;
                 self->notify();
               });
             });
  while (!worker_done_) co_await wait(Clock::time_point::max());
}

Connection::Task<bool> Connection::write(std::string bytes) {
  std::size_t written = 0;
  output_ = std::move(bytes);
  while (written < output_.size()) {
    const std::size_t piece = std::min(kWritePieceBytes, output_.size() - written);
    writing_ = true;
    write_failed_ = false;
    asio::async_write(socket_, asio::buffer(output_.data() + written, piece),
                      [self = shared_from_this()](error_code error, std::size_t) {
                        self->writing_ = false;
                        self->write_failed_ = static_cast<bool>(error);
                        self->notify();
                      });
    auto deadline = Clock::now() + std::chrono::seconds(server_.options.not_reading_seconds);
    while (writing_) {
      co_await wait(deadline);
      if (!writing_) break;
      if (server_.stopping) deadline = std::min(deadline, Clock::now() + kStopWriteTime);
      if (Clock::now() >= deadline || cancel_if_gone()) {
        close_socket();  // the pending write completes with an error
        deadline = Clock::time_point::max();
      }
    }
    if (write_failed_) {
      peer_closed_ = true;
      cancel_if_gone();
      co_return false;
    }
    written += piece;
  }
  co_return true;
}

Connection::Task<void> Connection::run() {
  bool more = true;
  while (more) {
    try {
      more = co_await serve_one();
    } catch (const std::exception& error) {
      spdlog::error("connection {}: {}", peer_, error.what());
      generation_ = nullptr;  // it went with the frame that threw
      more = false;
    }
  }
  co_await linger();
  close_socket();
}

/// A close with unread input would reset the connection and could take the reply with it: say that nothing more comes,
/// then read what the client still sends for a moment.
Connection::Task<void> Connection::linger() {
  error_code ignored;
  if (socket_.is_open()) socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  const auto deadline = Clock::now() + kLingerTime;
  std::size_t dropped = 0;
  while (!peer_closed_ && !server_.stopping && Clock::now() < deadline && dropped < kLingerBytesMax) {
    dropped += input_.size();
    input_.clear();
    want_input();
    co_await wait(deadline);
  }
}

Connection::Task<bool> Connection::serve_one() {
  HttpRequestParser parser(limits::kHttpBodyBytesMax);
  if (!co_await read_head(parser)) co_return false;
  HttpRequest& request = parser.request();
  request.peer = peer_;
  request.key_label = "-";
  if (!is_served_method(request.method)) {
    const ApiError error(501, "invalid_request_error", fmt::format("method {} is not served", request.method));
    co_return co_await respond(request, error.response(), parser.keep_alive() && !parser.has_body());
  }
  const std::string_view host = request.single_header("host");
  if (!server_.hosts.allows(host)) co_return co_await respond(request, host_refused_response(host), false);
  const RouteMatch match = route(request.method, request.path);
  if (match.gated) {
    const std::optional<KeyHolder> holder = server_.keys.authorise(request);
    if (!holder) {
      request.key_label = "unauthenticated";
      co_return co_await respond(request, unauthorized_response(), false);
    }
    request.key_label = holder->label;
    request.key_scope = holder->scope;
  }
  if (parser.expects_continue() && parser.has_body() && input_.empty()) {
    if (!co_await write("HTTP/1.1 100 Continue\r\n\r\n")) co_return false;
  }
  if (!co_await read_body(parser)) co_return false;
  co_return co_await answer(parser, match);
}

Connection::Task<bool> Connection::read_head(HttpRequestParser& parser) {
  auto deadline = Clock::now() + std::chrono::seconds(server_.options.idle_seconds);
  bool idle = true;
  for (;;) {
    std::optional<FramingError> refused;
    bool complete = false;
    try {
      complete = parser.parse_head(input_);
    } catch (const FramingError& error) {
      refused = error;
    }
    if (refused) co_return co_await refuse_framing(parser, refused->status(), refused->what());
    if (complete) co_return true;
    if (idle && !parser.idle()) {
      idle = false;
      deadline = Clock::now() + std::chrono::seconds(server_.options.stalled_seconds);
    }
    if (server_.stopping || (idle && peer_closed_)) co_return false;
    if (peer_closed_) co_return co_await refuse_framing(parser, 400, "the request ends early");
    if (Clock::now() >= deadline) {
      if (idle) co_return false;
      co_return co_await refuse_framing(parser, 408, "the request stalled");
    }
    want_input();
    co_await wait(deadline);
  }
}

Connection::Task<bool> Connection::read_body(HttpRequestParser& parser) {
  auto deadline = Clock::now() + std::chrono::seconds(server_.options.stalled_seconds);
  std::size_t progress = 0;
  for (;;) {
    std::optional<FramingError> refused;
    bool complete = false;
    try {
      complete = parser.parse_body(input_);
    } catch (const FramingError& error) {
      refused = error;
    }
    if (refused) co_return co_await refuse_framing(parser, refused->status(), refused->what());
    if (complete) co_return true;
    if (server_.stopping) co_return co_await refuse_framing(parser, 503, "the server is stopping; try again later");
    if (peer_closed_) co_return co_await refuse_framing(parser, 400, "the request body ends early");
    if (parser.request().body.size() != progress) {
      progress = parser.request().body.size();
      deadline = Clock::now() + std::chrono::seconds(server_.options.stalled_seconds);
    }
    if (Clock::now() >= deadline) co_return co_await refuse_framing(parser, 408, "the request body stalled");
    want_input();
    co_await wait(deadline);
  }
}

Connection::Task<bool> Connection::refuse_framing(HttpRequestParser& parser, int status, std::string message) {
  HttpRequest shown;
  shown.method = "-";
  shown.path = "-";
  shown.peer = peer_;
  shown.key_label = "-";
  shown.minor_version = parser.request().minor_version;
  const ApiError error(status, status >= 500 ? "server_error" : "invalid_request_error", message);
  co_await respond(shown, error.response(), false);
  co_return false;
}

Connection::Task<bool> Connection::answer(HttpRequestParser& parser, RouteMatch match) {
  const HttpRequest& request = parser.request();
  const bool keep_alive = parser.keep_alive() && !server_.draining;
  switch (match.target) {
    case RouteTarget::kNone:
      co_return co_await respond(request, unknown_path_response(request), keep_alive);
    case RouteTarget::kChatCompletions:
    case RouteTarget::kCompletions:
      co_return co_await generate(request, match, keep_alive);
    default:
      break;
  }
  HttpResponse response = co_await plain_reply(request, match);
  co_return co_await respond(request, std::move(response), keep_alive);
}

Connection::Task<HttpResponse> Connection::plain_reply(const HttpRequest& request, RouteMatch match) {
  const std::shared_ptr<const ServedModel> model = server_.current_model();
  HttpResponse response;
  if (match.target == RouteTarget::kHealth) {
    ServerSnapshot snapshot;
    snapshot.keys_required = server_.keys.required();
    snapshot.draining = server_.draining;
    co_return handle_health(model.get(), snapshot);
  }
  if (model == nullptr) {
    co_return ApiError(503, "server_error", "the model is still loading").with_retry_after(5).response();
  }
  // Named: GCC 12 destroys a closure twice that is a temporary of a co_await expression.
  std::function<void()> work = [&response, &request, &model, match] {
    try {
      if (match.target == RouteTarget::kModels) response = handle_models(*model);
      if (match.target == RouteTarget::kModel) response = handle_model(*model, model_id_of(request.path));
      if (match.target == RouteTarget::kTokenize) response = handle_tokenize(*model, request);
      if (match.target == RouteTarget::kDetokenize) response = handle_detokenize(*model, request);
    } catch (const ApiError& error) {
      response = error.response();
    } catch (const Error& error) {
      response = api_error_from(error).response();
    } catch (const std::exception& error) {
      response = ApiError(500, "server_error", error.what()).response();
    }
  };
  co_await on_worker(request.body.size(), std::move(work));
  co_return response;
}

std::string Connection::head(const HttpRequest& request, const HttpResponse& response, std::size_t body_bytes,
                             bool chunked, bool keep_alive) const {
  const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::string text = fmt::format("HTTP/1.1 {} {}\r\nServer: TensorFold\r\nDate: {}\r\nContent-Type: {}\r\n",
                                 response.status, http_reason(response.status), http_date(now), response.content_type);
  if (chunked) {
    if (request.minor_version >= 1) text += "Transfer-Encoding: chunked\r\n";
    text += "Cache-Control: no-cache\r\n";
  } else {
    text += fmt::format("Content-Length: {}\r\n", body_bytes);
  }
  for (const auto& [name, value] : response.headers) text += fmt::format("{}: {}\r\n", name, value);
  if (!keep_alive) {
    text += "Connection: close\r\n";
  } else if (request.minor_version == 0) {
    text += "Connection: keep-alive\r\n";
  }
  text += "\r\n";
  return text;
}

void Connection::log_access(const HttpRequest& request, int status) const {
  spdlog::info("{} {} {} {} key={}", request.peer, request.method, request.path, status, request.key_label);
}

Connection::Task<bool> Connection::respond(const HttpRequest& request, HttpResponse response, bool keep_alive) {
  keep_alive = keep_alive && !response.close;
  log_access(request, response.status);
  std::string bytes = head(request, response, response.body.size(), false, keep_alive);
  if (request.method != "HEAD") bytes += response.body;
  const bool written = co_await write(std::move(bytes));
  co_return written&& keep_alive;
}

}  // namespace tensorfold
