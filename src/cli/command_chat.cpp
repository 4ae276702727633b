// `tensorfold chat MODEL`: a conversation in the terminal, on the same generation path as the server. Line editing and
// history come from libedit; Ctrl-C stops a reply, never the program.
#include <histedit.h>
#include <langinfo.h>
#include <unistd.h>

#include <atomic>
#include <clocale>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <mutex>
#include <vector>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/model_options.h"
#include "cli/progress.h"
#include "cli/terminal_text.h"
#include "serve/api_error.h"
#include "serve/api_keys.h"
#include "serve/generation.h"
#include "serve/load_served_model.h"

namespace tensorfold::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kHistoryLines = 1000;
constexpr auto kInterruptCheckInterval = std::chrono::milliseconds(50);
constexpr std::int32_t kPromptTokensWithProgress = 512;

std::atomic<bool> interrupted{false};

void on_interrupt(int) {
  interrupted = true;
}

const char* prompt_text(EditLine*) {
  return "> ";
}

/// Lines from the user: edited on a terminal, plain from a pipe.
class LineReader {
 public:
  LineReader() {
    if (isatty(STDIN_FILENO) != 1) return;
    // libedit drops what the locale's character set can't say, and the model reads UTF-8.
    std::setlocale(LC_CTYPE, "");
    if (std::string_view(nl_langinfo(CODESET)) != "UTF-8") std::setlocale(LC_CTYPE, "C.UTF-8");
    editor_ = el_init("tensorfold", stdin, stdout, stderr);
    history_ = history_init();
    if (editor_ == nullptr || history_ == nullptr) return;
    HistEvent event;
    history(history_, &event, H_SETSIZE, kHistoryLines);
    history(history_, &event, H_SETUNIQUE, 1);
    el_set(editor_, EL_PROMPT, prompt_text);
    el_set(editor_, EL_EDITOR, "emacs");
    el_set(editor_, EL_SIGNAL, 0);
    el_set(editor_, EL_HIST, history, history_);
    if (const char* home = std::getenv("HOME")) {
      std::error_code ignored;
      const auto folder = std::filesystem::path(home) / ".cache" / "tensorfold";
      std::filesystem::create_directories(folder, ignored);
      file_ = (folder / "chat_history").string();
      history(history_, &event, H_LOAD, file_.c_str());
    }
  }
  ~LineReader() {
    HistEvent event;
    if (history_ != nullptr && !file_.empty()) history(history_, &event, H_SAVE, file_.c_str());
    if (history_ != nullptr) history_end(history_);
    if (editor_ != nullptr) el_end(editor_);
  }
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  /// False at the end of input. Ctrl-C gives an empty line.
  bool read(std::string& line) {
    line.clear();
    if (editor_ == nullptr) return static_cast<bool>(std::getline(std::cin, line));
    int count = 0;
    const char* text = el_gets(editor_, &count);
    if (text == nullptr || count <= 0) return count < 0 || interrupted.exchange(false);
    line.assign(text, static_cast<std::size_t>(count));
    while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
    HistEvent event;
    if (!line.empty()) history(history_, &event, H_ENTER, line.c_str());
    return true;
  }

 private:
  EditLine* editor_ = nullptr;
  History* history_ = nullptr;
  std::string file_;
};

/// A notification that a terminal loop can wait for with a bound, as Ctrl-C can't wake a condition variable.
struct Bell {
  std::mutex mutex;
  std::condition_variable changed;
  bool rung = false;

  void ring() {
    std::lock_guard lock(mutex);
    rung = true;
    changed.notify_one();
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, kInterruptCheckInterval, [this] { return rung; });
    rung = false;
  }
};

/// A model may write control sequences; a terminal must not obey them.
void print_piece(const ReplyPiece& piece, bool terminal) {
  if (!piece.reasoning.empty()) {
    const std::string reasoning = terminal ? without_controls(piece.reasoning) : piece.reasoning;
    std::printf("%s%s%s", terminal ? "\033[2m" : "", reasoning.c_str(), terminal ? "\033[0m" : "");
  }
  const std::string content = terminal ? without_controls(piece.content) : piece.content;
  std::fwrite(content.data(), 1, content.size(), stdout);
  std::fflush(stdout);
}

/// Writes one reply as it comes and returns its content.
std::string reply_to(const std::shared_ptr<const ServedModel>& model, const Json& messages) {
  GenerationRequest request;
  request.id = "chat-" + random_hex(8);
  request.is_chat = true;
  request.messages = messages;
  const auto bell = std::make_shared<Bell>();
  interrupted = false;
  const std::unique_ptr<Generation> generation = Generation::open(model, std::move(request), [bell] { bell->ring(); });
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  const bool long_prompt = generation->prompt_tokens().size() >= kPromptTokensWithProgress;
  ProgressLine progress;
  std::vector<ReplyPiece> pieces;
  bool in_reasoning = false;
  while (true) {
    pieces.clear();
    generation->poll(pieces);
    if (generation->started() || !pieces.empty()) progress.clear();
    for (const ReplyPiece& piece : pieces) {
      if (in_reasoning && !piece.content.empty()) std::fputs("\n\n", stdout);
      in_reasoning = piece.content.empty() && (in_reasoning || !piece.reasoning.empty());
      print_piece(piece, terminal);
    }
    if (generation->finished()) break;
    if (interrupted.exchange(false)) generation->cancel();
    const PromptProgressEvent done = generation->prompt_progress();
    if (long_prompt && !generation->started() && done.tokens_total > 0) {
      progress.show(static_cast<double>(done.tokens_done) / done.tokens_total, "reading the prompt");
    }
    bell->wait();
  }
  const GenerationResult& result = generation->result();
  std::fputs("\n", stdout);
  if (result.reason == FinishReason::kError) std::fprintf(stderr, "(the reply broke: %s)\n", result.message.c_str());
  if (result.reason == FinishReason::kCancelled) std::fputs("(stopped)\n", stderr);
  if (result.reason == FinishReason::kLength) std::fputs("(cut: --max-tokens or the context is used up)\n", stderr);
  return result.content;
}

void print_commands() {
  std::fputs("/help   this text\n/clear  forget the conversation\n/exit   leave (or Ctrl-D)\nCtrl-C stops a reply.\n",
             stderr);
}

void converse(const std::shared_ptr<const ServedModel>& model) {
  LineReader reader;
  Json messages = Json::array();
  std::string line;
  while (reader.read(line)) {
    interrupted = false;
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    if (line == "/exit" || line == "/quit") return;
    if (line == "/help") {
      print_commands();
    } else if (line == "/clear") {
      messages = Json::array();
    } else if (line[0] == '/') {
      std::fprintf(stderr, "unknown command %s; /help lists them\n", line.c_str());
    } else {
      messages.push_back({{"role", "user"}, {"content", line}});
      try {
        const std::string content = reply_to(model, messages);
        messages.push_back({{"role", "assistant"}, {"content", content}});
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        messages.erase(messages.size() - 1);  // a turn that could not be answered is not part of the conversation
      }
    }
  }
}

}  // namespace

int run_chat(const std::vector<std::string>& words) {
  const Arguments arguments = parse_arguments(kChat, words);
  if (arguments.help()) {
    std::fputs(help_text(kChat).c_str(), stdout);
    return 0;
  }
  std::shared_ptr<const ServedModel> model;
  {
    ProgressLine progress;
    model = load_served_model(model_options(arguments),
                              [&progress](double fraction, const std::string& what) { progress.show(fraction, what); });
  }
  struct sigaction action {};
  action.sa_handler = on_interrupt;  // without SA_RESTART: a line being typed is given up too
  sigaction(SIGINT, &action, nullptr);
  if (isatty(STDERR_FILENO) == 1) std::fprintf(stderr, "%s. /help lists commands.\n", model->names.front().c_str());
  converse(model);
  return 0;
}

}  // namespace tensorfold::cli
