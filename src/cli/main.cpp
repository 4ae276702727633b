// Entry point: picks the command, and turns what it throws into messages and exit statuses (api.md 1.1).
#include <cstdio>
#include <exception>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/terminal_text.h"

namespace tensorfold::cli {
namespace {

constexpr int kUsage = 2;

std::string summary() {
  return "usage: tensorfold COMMAND ...\n\n"
         "  serve MODEL [flags]    answer OpenAI-style requests from MODEL\n"
         "  chat MODEL [flags]     talk to MODEL in this terminal\n"
         "  info MODEL             what MODEL is and what it needs\n"
         "  verify MODEL [flags]   check on this machine that replies don't depend on how they are computed\n"
         "  convert IN OUT         quantise a checkpoint to MLX affine\n"
         "  bench MODEL WHAT ...   measure this engine (benchmark, for served models, isn't built)\n"
         "  capabilities --json    what this build serves, for programs\n"
         "  --version              program and version\n"
         "  --help, -h             this text; also after a command\n";
}

struct Entry {
  const char* name;
  int (*run)(const std::vector<std::string>&);
  std::optional<Command> command = std::nullopt;  // of the flag table; absent: it has no flags there
};
constexpr Entry kCommands[] = {{"serve", run_serve, kServe},       {"info", run_info, kInfo},
                               {"chat", run_chat, kChat},          {"verify", run_verify, kVerify},
                               {"convert", run_convert, kConvert}, {"bench", run_bench, kBench},
                               {"capabilities", run_capabilities}};

/// Commands of the API reference that this build doesn't have.
constexpr const char* kUnbuiltCommands[] = {"models",  "pull", "benchmark", "web",     "slide", "update",
                                            "version", "run",  "plan",      "service", "tui",   "stage"};

int dispatch(const std::string& command, const std::vector<std::string>& words) {
  if (command == "--version") {
    std::printf("tensorfold %s\n", version());
    return 0;
  }
  if (command == "--help" || command == "-h") {
    std::fputs(summary().c_str(), stdout);
    return 0;
  }
  for (const Entry& entry : kCommands) {
    if (command != entry.name) continue;
    try {
      return entry.run(words);
    } catch (const UsageError& error) {
      if (entry.command) std::fprintf(stderr, "%s\n", usage_line(*entry.command).c_str());
      std::fprintf(stderr, "tensorfold %s: error: %s\n", entry.name, error.what());
      return kUsage;
    }
  }
  for (const char* name : kUnbuiltCommands) {
    if (command != name) continue;
    std::fprintf(stderr, "tensorfold: the command '%s' is not part of this build%s\n", name,
                 command == "benchmark" ? ", which can't measure a served model; 'bench' measures this engine" : "");
    return kUsage;
  }
  std::fprintf(stderr, "%stensorfold: error: unknown command '%s'\n", summary().c_str(), command.c_str());
  return kUsage;
}

int run_main(int count, char** values) {
  if (count < 2) {
    std::fputs(summary().c_str(), stderr);
    return kUsage;
  }
  log_initialise("info");
  install_mapped_file_guard();
  try {
    return dispatch(values[1], {values + 2, values + count});
  } catch (const std::bad_alloc&) {
    std::fputs("tensorfold: out of memory\n", stderr);
  } catch (const std::exception& error) {
    // It may quote a name from a file that somebody else wrote.
    std::fprintf(stderr, "tensorfold: %s\n", without_controls(error.what()).c_str());
  }
  return 1;
}

}  // namespace

}  // namespace tensorfold::cli

int main(int count, char** values) {
  return tensorfold::cli::run_main(count, values);
}
