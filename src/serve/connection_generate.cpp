// Generating replies on a connection: admission, opening, streaming with keepalives, and cancelling when the client
// leaves.
#include <spdlog/spdlog.h>

#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "serve/api_error.h"
#include "serve/connection.h"
#include "serve/generation_log.h"

namespace tensorfold {
namespace asio = boost::asio;

namespace {

constexpr int kDrainRetrySeconds = 30;

/// Counts a generating request. It is counted before the drain flag is read, so that none slips between (api.md 5.6).
class Admission {
 public:
  explicit Admission(ServerState& server) : server_(server) { ++server_.generating; }
  ~Admission() {
    std::lock_guard lock(server_.mutex);
    --server_.generating;
    server_.changed.notify_all();
  }
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

 private:
  ServerState& server_;
};

constexpr const char* kStoppedText = "the server stopped before this reply was complete; send the request again";

ApiError restarting_error(const std::string& message) {
  return ApiError(503, "server_error", message)
      .with_code("server_restarting")
      .with_retry_after(kDrainRetrySeconds)
      .with_close();
}

std::string as_chunk(const std::string& bytes, int minor_version) {
  if (minor_version == 0) return bytes;
  return fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes);
}

}  // namespace

bool Connection::cancel_if_gone() {
  if (generation_ == nullptr) return false;
  const bool falls_behind = generation_->overflowed() && !generation_->finished();
  if (!peer_closed_ && !falls_behind) return false;
  generation_->cancel();
  return true;
}

Connection::Task<bool> Connection::generate(const HttpRequest& request, RouteMatch match, bool keep_alive) {
  const auto received = Clock::now();
  const Admission admission(server_);
  if (server_.draining) {
    const ApiError error = restarting_error("the server is stopping; try again later");
    co_return co_await respond(request, error.response(), false);
  }
  const std::shared_ptr<const ServedModel> model = server_.current_model();
  if (model == nullptr) {
    const ApiError error = ApiError(503, "server_error", "the model is still loading").with_retry_after(5);
    co_return co_await respond(request, error.response(), keep_alive);
  }
  want_input();
  Exchange exchange;
  std::optional<HttpResponse> refused;
  std::function<void()> wake = [weak = weak_from_this(), executor = socket_.get_executor()] {
    asio::post(executor, [weak] {
      if (const auto self = weak.lock()) self->notify();
    });
  };
  // Named: GCC 12 destroys a closure twice that is a temporary of a co_await expression.
  std::function<void()> work = [&exchange, &refused, &request, &model, match, received, wake] {
    try {
      exchange = open_exchange(match.target, model, request, received, wake);
    } catch (const ApiError& error) {
      refused = error.response();
    } catch (const Error& error) {
      refused = api_error_from(error).response();
    } catch (const std::exception& error) {
      refused = ApiError(500, "server_error", error.what()).response();
    }
  };
  co_await on_worker(request.body.size(), std::move(work));
  if (refused) {
    spdlog::info("refused {}: {}", request.path, refused->body);
    co_return co_await respond(request, std::move(*refused), keep_alive);
  }
  generation_ = exchange.generation.get();
  bool more = false;
  if (generation_->request().stream) {
    more = co_await stream_reply(request, exchange, keep_alive);
  } else {
    more = co_await whole_reply(request, exchange, keep_alive);
  }
  // However the writing ended, the engine's own end is waited for before the request's memory goes. Polled first: a
  // write may have slept through the notice of events that are there, and there is none of events behind them.
  std::vector<ReplyPiece> pieces;
  generation_->poll(pieces);
  while (!generation_->finished()) {
    generation_->cancel();
    co_await wait(Clock::time_point::max());
    generation_->poll(pieces);
  }
  log_generation(*generation_, peer_closed_);
  generation_ = nullptr;
  co_return more && !peer_closed_;
}

Connection::Task<bool> Connection::whole_reply(const HttpRequest& request, Exchange& exchange, bool keep_alive) {
  std::vector<ReplyPiece> pieces;
  for (;;) {
    want_input();
    generation_->poll(pieces);
    pieces.clear();
    if (generation_->finished()) break;
    if (cancel_if_gone() && peer_closed_) co_return false;  // a client that is there hears of what overflowed, with the end
    if (server_.stopping) {
      generation_->cancel();
      co_return co_await respond(request, restarting_error(kStoppedText).response(), false);
    }
    co_await wait(Clock::time_point::max());
  }
  if (peer_closed_) co_return false;
  if (generation_->failure()) {
    const ApiError error(500, "server_error", *generation_->failure());
    co_return co_await respond(request, error.response(), keep_alive);
  }
  HttpResponse response;
  response.body = exchange.format->whole(*generation_);
  co_return co_await respond(request, std::move(response), keep_alive);
}

Connection::Task<bool> Connection::stream_reply(const HttpRequest& request, Exchange& exchange, bool keep_alive) {
  keep_alive = keep_alive && request.minor_version >= 1;
  const auto quiet =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(server_.options.keepalive_seconds));
  auto last_written = Clock::now();
  bool opened = false;
  std::vector<ReplyPiece> pieces;
  for (;;) {
    want_input();
    pieces.clear();
    generation_->poll(pieces);
    const bool finished = generation_->finished();
    const bool cancelled = !finished && cancel_if_gone();
    if (peer_closed_) co_return false;
    if (cancelled) {  // too much waited to be read: a client that is there hears of it with the end, which is near
      co_await wait(Clock::time_point::max());
      continue;
    }
    const bool stopped = !finished && server_.stopping;
    if (stopped) generation_->cancel();
    if (stopped && !opened) co_return co_await respond(request, restarting_error(kStoppedText).response(), false);
    const std::optional<std::string>& failure = generation_->failure();
    if (failure && !finished && !stopped) {  // its siblings are being cancelled: the end of the last one is near
      co_await wait(Clock::time_point::max());
      continue;
    }
    if (failure && !opened) {
      const ApiError error(500, "server_error", *failure);
      co_return co_await respond(request, error.response(), keep_alive);
    }
    const bool silent = Clock::now() - last_written >= quiet;
    std::string events;
    std::string bytes;
    if (!opened && (generation_->started() || silent)) {
      opened = true;
      HttpResponse response;
      response.content_type = "text/event-stream";
      bytes = head(request, response, 0, true, keep_alive);
      events += exchange.format->stream_open(*generation_);
      log_access(request, response.status);
    }
    for (ReplyPiece& piece : pieces) {
      if (failure || stopped)
        piece.ends_choice = false;  // what was written stays written, and no choice is called complete
      events += exchange.format->stream_piece(*generation_, piece);
    }
    if (stopped) {
      events += exchange.format->stream_error(kStoppedText);
    } else if (finished) {
      events += failure ? exchange.format->stream_error(*failure) : exchange.format->stream_close(*generation_);
    }
    if (events.empty() && silent) events = ": keepalive\n\n";
    if (events.empty() && bytes.empty()) {
      co_await wait(last_written + quiet);
      continue;
    }
    if (!events.empty()) bytes += as_chunk(events, request.minor_version);  // an empty chunk would end the body
    if ((finished || stopped) && request.minor_version >= 1) bytes += "0\r\n\r\n";
    if (!co_await write(std::move(bytes)) || stopped) co_return false;
    last_written = Clock::now();
    if (finished) co_return keep_alive;
  }
}

}  // namespace tensorfold
