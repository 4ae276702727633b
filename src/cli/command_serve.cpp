// `tensorfold serve MODEL`: listens first (so that /health can say "loading"), loads, serves until a signal, drains.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/limits.h"
#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/model_options.h"
#include "cli/progress.h"
#include "serve/load_served_model.h"
#include "serve/server.h"

namespace tensorfold::cli {
namespace {

constexpr auto kSameWish = std::chrono::milliseconds(250);

/// SIGTERM and SIGINT (SIGHUP, which ends nothing, is read on the way) as something to wait for. Made before any
/// thread, so that all inherit the blocked mask.
class StopSignal {
 public:
  StopSignal() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    thread_ = std::thread([this] { watch(); });
    thread_.detach();  // sigwait has no portable way out; the process ends with it waiting
  }
  /// While loading nothing is running that a client waits for: a signal ends the process at once.
  void loading_done() { loading_ = false; }
  void wait() {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [this] { return state_->received; });
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool received = false;
  };

  /// The next signal that asks to stop.
  int next() {
    int signal = 0;
    do {
      sigwait(&set_, &signal);
      if (signal == SIGHUP) spdlog::info("SIGHUP: there is no key file to read again");
    } while (signal == SIGHUP);
    return signal;
  }

  void watch() {
    const std::shared_ptr<State> state = state_;
    int signal = next();
    spdlog::info("stopping on signal {}", signal);
    if (loading_) _exit(0);
    {
      std::lock_guard lock(state->mutex);
      state->received = true;
      state->changed.notify_all();
    }
    // What stops a process often signals its group as well (timeout(1) does): that is one wish, not impatience.
    const auto first = std::chrono::steady_clock::now();
    do {
      signal = next();
    } while (std::chrono::steady_clock::now() - first < kSameWish);
    spdlog::warn("second signal {}: stopping without waiting", signal);
    _exit(1);
  }

  sigset_t set_{};
  std::atomic<bool> loading_{true};
  std::shared_ptr<State> state_ = std::make_shared<State>();
  std::thread thread_;
};

ApiKeys keys_from(const Arguments& arguments) {
  try {
    ApiKeys keys;
    keys.add_flag_keys(arguments.list("--api-key"));
    if (const char* list = std::getenv("TENSORFOLD_API_KEY")) keys.add_environment_keys(list);
    return keys;
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

void announce(const ServedModel& model, const Server& server, double load_seconds) {
  const EngineFacts& facts = model.engine->facts();
  const SamplingDefaults& defaults = model.defaults;
  spdlog::info(
      "{} ({}) on {} {}: {} {} at once, context {}, weights {:.2f} GiB, caches {:.2f} GiB, kept prefixes up to "
      "{:.2f} GiB",
      facts.model.family_title, facts.model.family, facts.model.backend, facts.model.backend_path, facts.lanes,
      facts.lanes == 1 ? "stream" : "streams", facts.context,
      static_cast<double>(facts.model.packed_weight_bytes) / (1ull << 30),
      static_cast<double>(facts.cache_bytes) / (1ull << 30), static_cast<double>(facts.prefix_bytes) / (1ull << 30));
  if (!facts.learn_folder.empty()) {
    spdlog::info("learning: prompts that are kept are written to {}, readable by this user only", facts.learn_folder);
  }
  spdlog::info(
      "serving {} at {} (temperature {}, top-p {}, top-k {}, min-p {}, drafts {}, window {}, loaded in {:.1f} s)",
      model.names.front(), server.base_url(), defaults.temperature, defaults.top_p, defaults.top_k, defaults.min_p,
      facts.draft_kinds.empty() ? "off" : fmt::format("{}", fmt::join(facts.draft_kinds, " + ")), facts.context,
      load_seconds);
  if (model.thinking_default) {
    spdlog::info(
        "{}",
        R"(thinking is on: start with --no-thinking, or send "chat_template_kwargs": {"enable_thinking": false})");
  }
}

std::string reply_count(int count) {
  return fmt::format("{} {}", count, count == 1 ? "reply" : "replies");
}

void drain(Server& server) {
  if (const int running = server.running_replies(); running > 0) {
    spdlog::info("waiting for {}, up to {} s; interrupt again to stop now", reply_count(running),
                 limits::kHttpDrainSecondsMax);
  }
  const int left = server.drain(limits::kHttpDrainSecondsMax);
  if (left > 0) spdlog::warn("{} cut off: not complete after {} s", reply_count(left), limits::kHttpDrainSecondsMax);
}

}  // namespace

int run_serve(const std::vector<std::string>& words) {
  const Arguments arguments = parse_arguments(kServe, words);
  if (arguments.help()) {
    std::fputs(help_text(kServe).c_str(), stdout);
    return 0;
  }
  const ServedModelOptions options = model_options(arguments);
  StopSignal stop;
  ServerOptions server_options;
  server_options.host = arguments.text("--host").value_or("127.0.0.1");
  server_options.allowed_hosts = arguments.list("--allowed-host");
  server_options.port = static_cast<std::uint16_t>(arguments.integer("--port").value_or(8080));
  ApiKeys keys = keys_from(arguments);
  const bool has_keys = keys.required();
  std::shared_ptr<const ServedModel> model;  // outlives the server, whose streams it runs
  Server server(server_options, std::move(keys));
  server.start();
  spdlog::info("listening on {} (loading {})", server.base_url(), options.model);
  if (!has_keys && !server.host_is_loopback()) {
    spdlog::warn("anyone who reaches {} may use this server: set --api-key or TENSORFOLD_API_KEY", server.base_url());
  }
  const auto began = std::chrono::steady_clock::now();
  {
    ProgressLine progress;
    model = load_served_model(options,
                              [&progress](double fraction, const std::string& what) { progress.show(fraction, what); });
  }
  server.set_model(model);
  stop.loading_done();
  announce(*model, server, std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
  stop.wait();
  drain(server);
  server.stop();
  return 0;
}

}  // namespace tensorfold::cli
