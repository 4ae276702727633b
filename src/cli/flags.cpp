// See flags.h.
#include "cli/flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/limits.h"
#include "convert/synthetic/presets.h"
#include "convert/synthetic/synthetic_checkpoint.h"

namespace tensorfold::cli {
namespace {

constexpr double kIntMax = 2147483647.0;
constexpr double kLayersMax = static_cast<double>(limits::kLayerCountMax);
constexpr double kUnbounded = std::numeric_limits<double>::max();
constexpr double kGibMax = 1u << 20;
constexpr unsigned kBoth = kServe | kChat;
constexpr unsigned kComputing = kServe | kChat | kVerify | kBench;
constexpr double kRepeatsMin = 3;  // below that there is no median

std::vector<std::string_view> bench_presets() {
  std::vector<std::string_view> names;
  for (const SyntheticPreset& preset : synthetic_presets()) names.push_back(preset.name);
  return names;
}

std::vector<Flag> make_table() {
  return {
      {"--host", FlagKind::kText, kServe, "ADDRESS", "address to listen on (127.0.0.1)"},
      {"--port",
       FlagKind::kInteger,
       kServe,
       "N",
       "port to listen on (8080); 0 picks a free one and prints it",
       {},
       0,
       65535},
      {"--allowed-host",
       FlagKind::kText,
       kServe,
       "NAME",
       "a further Host name to answer to, beside loopback and --host; may be repeated",
       {},
       0,
       0,
       true},
      {"--name", FlagKind::kText, kBoth, "TEXT", "model id that clients see (from the model)"},
      {"--alias", FlagKind::kText, kServe, "TEXT", "a further model id; may be repeated", {}, 0, 0, true},
      {"--api-key",
       FlagKind::kText,
       kServe,
       "KEY",
       "require this key; may be repeated (also TENSORFOLD_API_KEY, comma separated)",
       {},
       0,
       0,
       true},
      {"--parallel", FlagKind::kText, kServe, "N|auto",
       "replies written at once (auto: up to 8, fewer if memory says so)"},
      {"--prompt-cache-gib",
       FlagKind::kNumber,
       kServe,
       "G",
       "memory for kept prompt prefixes; 0 = off (a quarter of what the streams leave)",
       {},
       0,
       kGibMax},
      {"--prompt-cache-over-cap", FlagKind::kSwitch, kServe, "",
       "keep such a budget above 70% of what the streams leave"},
      {"--prompt-cache-scope",
       FlagKind::kChoice,
       kServe,
       "WHO",
       "who may reuse a kept prefix: the key that sent it, or all (key)",
       {"key", "all"}},
      {"--learn", FlagKind::kSwitch, kServe, "", "keep shared prompt prefixes (system prompts) on disk"},
      {"--learn-dir", FlagKind::kText, kServe, "DIR", "where; implies --learn (~/.cache/tensorfold/learned)"},
      {"--learn-gib", FlagKind::kNumber, kServe, "G", "most disk space for it; implies --learn (32)", {}, 0, kGibMax},
      {"--learn-min-free-gib",
       FlagKind::kNumber,
       kServe,
       "G",
       "learning pauses while the disk has less left (4)",
       {},
       0,
       kGibMax},
      {"--learn-conversations", FlagKind::kSwitch, kServe, "",
       "keep every prompt and reply, so that conversations survive a restart; implies --learn"},
      {"--learn-daily-gib", FlagKind::kNumber, kServe, "G", "most that is written a day (32)", {}, 0, kGibMax},
      {"--context",
       FlagKind::kInteger,
       kBoth,
       "N",
       "tokens of prompt plus reply; 0 = what model and memory allow",
       {},
       0,
       kIntMax},
      {"--max-tokens", FlagKind::kInteger, kBoth, "N", "reply limit when a request names none (4096)", {}, 1, kIntMax},
      {"--temperature",
       FlagKind::kNumber,
       kBoth,
       "T",
       "sampling temperature; 0 = greedy (the checkpoint's)",
       {},
       0,
       kUnbounded},
      {"--top-p", FlagKind::kNumber, kBoth, "P", "nucleus; outside (0, 1) = off (the checkpoint's)", {}, 0, 1},
      {"--top-k",
       FlagKind::kInteger,
       kBoth,
       "K",
       "most likely tokens to draw from; 0 or less = off (the checkpoint's)",
       {},
       -kIntMax,
       kIntMax},
      {"--min-p",
       FlagKind::kNumber,
       kBoth,
       "P",
       "least probability relative to the likeliest; 0 = off (the checkpoint's)",
       {},
       0,
       1},
      {"--seed",
       FlagKind::kInteger,
       kBoth,
       "N",
       "seed of requests that name none (a fresh one for each)",
       {},
       -kUnbounded,
       kUnbounded},
      {"--prompt-seed", FlagKind::kSwitch, kBoth, "",
       "requests without a seed use one that follows from their prompt (and TENSORFOLD_SEED_SALT)"},
      {"--instruct-sampling", FlagKind::kText, kBoth, "RULE",
       "defaults of chats with thinking off: card (temperature 0.7, top_p 0.8, top_k 20, presence_penalty 1.5), "
       "name=value pairs that override parts of it, or none (none)"},
      {"--chat-template", FlagKind::kText, kBoth, "FILE", "template that replaces the checkpoint's"},
      {"--thinking", FlagKind::kSwitch, kBoth, "", "thinking on by default (where the template has a switch)"},
      {"--no-thinking", FlagKind::kSwitch, kBoth, "", "thinking off by default"},
      {"--thinking-budget",
       FlagKind::kInteger,
       kBoth,
       "N",
       "reasoning may take N tokens of a reply (0 = no limit)",
       {},
       0,
       kIntMax},
      {"--reasoning-effort",
       FlagKind::kChoice,
       kBoth,
       "LEVEL",
       "default effort (the template's own)",
       {"minimal", "low", "medium", "high", "xhigh", "max"}},
      {"--no-drafts", FlagKind::kSwitch, kBoth, "", "draft nothing: the serial reference, token for token the same"},
      {"--drafter",
       FlagKind::kText,
       kBoth,
       "DIR",
       "block drafter: a folder or OWNER/NAME in the cache (dflash2/ beside the model, where there is one)"},
      {"--drafter-bits",
       FlagKind::kInteger,
       kBoth,
       "N",
       "4 packs the drafter's large matrices, 0 keeps them (4)",
       {},
       0,
       4},
      {"--mtp-drafts",
       FlagKind::kInteger,
       kBoth,
       "N",
       "most tokens the MTP head drafts; 0 = none (as many as it is good for)",
       {},
       0,
       64},
      {"--mtp-confidence",
       FlagKind::kNumber,
       kBoth,
       "P",
       "chance below which a chain of MTP drafts ends (0.3)",
       {},
       0,
       1},
      {"--recall", FlagKind::kSwitch, kServe, "", "draft from earlier requests; keeps their token ids on disk"},
      {"--recall-dir", FlagKind::kText, kServe, "DIR", "where (~/.cache/tensorfold/recall); implies --recall"},
      {"--recall-gib",
       FlagKind::kNumber,
       kServe,
       "GIB",
       "most disk space, oldest ids leave first (0.0625); implies --recall",
       {},
       0.00390625,
       8},
      {"--recall-read-only", FlagKind::kSwitch, kServe, "", "draft from what is there, add nothing; implies --recall"},
      {"--backend", FlagKind::kChoice, kComputing | kInfo, "NAME", "what computes; auto: the GPU where there is one (auto)",
       {"auto", "cpu", "cuda", "reference"}},
      {"--device", FlagKind::kInteger, kComputing | kInfo, "N", "GPU to use (the first that can be used)", {}, 0, 255},
      {"--rounding",
       FlagKind::kChoice,
       kComputing,
       "RULE",
       "reference backend: round nothing, or where the CPU rounds (none)",
       {"none", "backend"}},
      {"--threads", FlagKind::kInteger, kComputing, "N", "compute threads; 0: all cores (0)", {}, 0, 1024},
      {"--schedules", FlagKind::kInteger, kVerify, "N", "random schedules to run, two with the same requests (20)", {}, 1, kIntMax},
      {"--jobs", FlagKind::kInteger, kVerify, "N", "pairs of schedules that run side by side on the CPU, each with weights of its own (1)", {}, 1, 64},
      {"--seed", FlagKind::kInteger, kVerify, "N", "seed of the schedules (1)", {}, -kUnbounded, kUnbounded},
      {"--synthetic", FlagKind::kChoice, kBench, "PRESET",
       "instead of MODEL: random weights in the shapes of a real model, made on the spot", bench_presets()},
      {"--format", FlagKind::kChoice, kBench, "NAME",
       "of a synthetic model's matrices; q4_0, q4_1 and q8_0 are GGUF's (affine4)", synthetic_formats()},
      {"--layers", FlagKind::kInteger, kBench, "N", "layers of a synthetic model (the preset's)", {}, 1, kLayersMax},
      {"--mtp", FlagKind::kSwitch, kBench, "", "a synthetic model with its MTP head, where the preset has one"},
      {"--write-gguf", FlagKind::kText, kBench, "FILE", "write the synthetic model as a GGUF file, for other engines"},
      {"--write-mlx", FlagKind::kText, kBench, "DIR", "... as the folder of an MLX conversion"},
      {"--context", FlagKind::kInteger, kBench, "N", "tokens before those that are timed (2048)", {}, 1, kIntMax},
      {"--prompt-tokens", FlagKind::kText, kBench, "LIST", "prefill: lengths of prompts (512,2048)"},
      {"--reply-tokens", FlagKind::kInteger, kBench, "N", "decode, concurrency: tokens of a stream for one repeat (64)",
       {}, 1, 65536},
      {"--streams", FlagKind::kText, kBench, "LIST",
       "concurrency: how many at once (1,4,16,64); kernels: lanes of one row, beside the windows"},
      {"--rows", FlagKind::kText, kBench, "LIST",
       "decode, kernels: rows of one stream's window; above 128: in kernels alone, slices of a prompt (1,4,8,16)"},
      {"--accepted", FlagKind::kInteger, kBench, "N", "rows of the window before that landed (4)", {}, 0, 128},
      {"--compare-streams", FlagKind::kInteger, kBench, "N",
       "concurrency: streams whose tokens are compared with the same stream alone (all)", {}, 0, kIntMax},
      {"--compare-drafts", FlagKind::kSwitch, kBench, "",
       "decode: also with drafts, which must give the same tokens; fails where they don't"},
      {"--repeat-passage", FlagKind::kInteger, kBench, "N",
       "decode: prompts say a passage of N tokens over and over, as a model that copies would see (0 = they don't)", {},
       0, kIntMax},
      {"--temperature", FlagKind::kNumber, kBench, "T", "decode: 0 = greedy (0)", {}, 0, kUnbounded},
      {"--repeats", FlagKind::kInteger, kBench, "N", "of every figure; the median is shown (3)", {}, kRepeatsMin, 1000},
      {"--peak-gbps", FlagKind::kNumber, kBench, "G",
       "the memory's speed in GB/s, for floors (measured on the CPU, else none)", {}, 0, kUnbounded},
      {"--seed", FlagKind::kInteger, kBench, "N", "of random weights and prompts (1)", {}, -kUnbounded, kUnbounded},
      {"--output", FlagKind::kText, kBench, "FILE", "write the report there too, as --json would print it"},
      {"--json", FlagKind::kSwitch, kVerify | kBench, "", "print the report as one JSON object"},
      {"--bits", FlagKind::kInteger, kConvert, "N", "bits of a weight: 2, 3, 4, 5, 6 or 8 (4)", {}, 2, 8},
      {"--group", FlagKind::kInteger, kConvert, "N", "weights that share a scale: 32, 64 or 128 (64)", {}, 32, 128},
      {"--mixed", FlagKind::kText, kConvert, "RULES",
       "PATTERN=BITS[:GROUP] or PATTERN=none by module path, comma separated; first match wins"},
      {"--profile", FlagKind::kChoice, kServe, "NAME", "names the current defaults", {"stable"}},
      {"--no-update-check", FlagKind::kSwitch, kServe, "", "accepted; there is no update check"},
  };
}

const Flag* find_flag(Command command, std::string_view name) {
  for (const Flag& flag : flag_table()) {
    if (flag.name == name && (flag.commands & command) != 0) return &flag;
  }
  return nullptr;
}

bool is_integer_text(std::string_view text) {
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) text.remove_prefix(1);
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

double parse_number(std::string_view text) {
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = end == text.data() + text.size();
  if (!whole || (error != std::errc() && !is_integer_text(text))) return std::nan("");
  if (error == std::errc::result_out_of_range) return text.front() == '-' ? -kUnbounded : kUnbounded;
  return value;
}

std::string bound_text(const Flag& flag, double number) {
  if (flag.maximum >= kIntMax) {
    return number > flag.maximum ? fmt::format("at most {}", flag.maximum) : fmt::format("at least {}", flag.minimum);
  }
  return fmt::format("between {} and {}", flag.minimum, flag.maximum);
}

void check_value(const Flag& flag, const std::string& value) {
  if (flag.kind == FlagKind::kChoice) {
    if (std::find(flag.choices.begin(), flag.choices.end(), value) == flag.choices.end()) {
      throw UsageError(fmt::format("argument {}: invalid choice: '{}' (choose from {})", flag.name, value,
                                   fmt::join(flag.choices, ", ")));
    }
  } else if (flag.kind == FlagKind::kInteger || flag.kind == FlagKind::kNumber) {
    const bool integer = flag.kind == FlagKind::kInteger;
    const double number = parse_number(value);
    if (!std::isfinite(number) || (integer && !is_integer_text(value))) {
      throw UsageError(fmt::format("argument {}: invalid {} value: '{}'", flag.name, integer ? "int" : "float", value));
    }
    if (number < flag.minimum || number > flag.maximum) {
      throw UsageError(fmt::format("argument {}: must be {}, not {}", flag.name, bound_text(flag, number), value));
    }
  }
}

void check_together(const std::map<std::string, std::vector<std::string>, std::less<>>& values) {
  if (values.count("--thinking") > 0 && values.count("--no-thinking") > 0) {
    throw UsageError("argument --thinking: not allowed with --no-thinking");
  }
  if (const auto bits = values.find("--drafter-bits"); bits != values.end() && !bits->second.empty()) {
    const double value = parse_number(bits->second.back());
    if (value != 0 && value != 4) {
      throw UsageError(fmt::format("argument --drafter-bits: must be 0 or 4, not {}", bits->second.back()));
    }
  }
}

}  // namespace

const std::vector<Flag>& flag_table() {
  static const std::vector<Flag> table = make_table();
  return table;
}

const std::vector<std::string_view>& unbuilt_flags() {
  static const std::vector<std::string_view> names = {"--unix-socket",
                                                      "--api-key-file",
                                                      "--metrics-open",
                                                      "--dashboard",
                                                      "--max-inflight",
                                                      "--max-inflight-per-key",
                                                      "--requests-per-second",
                                                      "--request-burst",
                                                      "--rope-yarn",
                                                      "--loops",
                                                      "--thinking-reserve",
                                                      "--loop-guard",
                                                      "--loop-guard-stop",
                                                      "--record",
                                                      "--checkpoint-slots",
                                                      "--snapshot-dir",
                                                      "--max-snapshots",
                                                      "--keep-warm",
                                                      "--compact-at",
                                                      "--compact-keep",
                                                      "--compact-memory",
                                                      "--cortheon",
                                                      "--slide",
                                                      "--slide-graph",
                                                      "--vision",
                                                      "--vision-urls",
                                                      "--vision-max-images",
                                                      "--vision-image-tokens",
                                                      "--segments",
                                                      "--tp",
                                                      "--rank",
                                                      "--master",
                                                      "--master-port",
                                                      "--policy",
                                                      "--speed-up",
                                                      "--cfg-gamma",
                                                      "--cfg-allow-request-gamma",
                                                      "--cfg-force-guided",
                                                      "--cfg-batched",
                                                      "--silence-floor-dbfs",
                                                      "--silence-seconds",
                                                      "--silence-onset-s",
                                                      "--silence-onset-voiced-s",
                                                      "--silence-mid-s",
                                                      "--silence-mid-min-voiced-s",
                                                      "--silence-redraws",
                                                      "--silence-redraw-budget-s",
                                                      "--silence-redraw-controls",
                                                      "--allowed-controls",
                                                      "--short-reply-ratio",
                                                      "--short-reply-chars-per-s",
                                                      "--register-redraw-st",
                                                      "--register-redraw-high",
                                                      "--register-high-hz",
                                                      "--vision-offload",
                                                      "--lane-kernels",
                                                      "--spill-gib",
                                                      "--decode-share",
                                                      "--prefill-pass",
                                                      "--pass-cache-gib",
                                                      "--mlx-cache-gib",
                                                      "--ssd-experts",
                                                      "--ple-on-ssd",
                                                      "--kv-dtype",
                                                      "--prefill-fp8",
                                                      "--no-prefill-fp8",
                                                      "--precision",
                                                      "--enable-sleep-mode",
                                                      "--sleep-token-env",
                                                      "--sleep-timeout",
                                                      "--sleep-cache-dir"};
  return names;
}

std::optional<std::string> Arguments::text(std::string_view name) const {
  const auto found = values_.find(name);
  if (found == values_.end() || found->second.empty()) return std::nullopt;
  return found->second.back();  // the last one wins
}

std::optional<std::int64_t> Arguments::integer(std::string_view name) const {
  const std::optional<double> value = number(name);
  if (!value) return std::nullopt;
  return static_cast<std::int64_t>(*value);
}

std::optional<double> Arguments::number(std::string_view name) const {
  const std::optional<std::string> value = text(name);
  if (!value) return std::nullopt;
  return parse_number(*value);
}

std::vector<std::string> Arguments::list(std::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? std::vector<std::string>{} : found->second;
}

Arguments parse_arguments(Command command, const std::vector<std::string>& words) {
  Arguments arguments;
  arguments.help_ = std::any_of(words.begin(), words.end(), [](const auto& w) { return w == "--help" || w == "-h"; });
  if (arguments.help_) return arguments;
  std::vector<std::string> positionals;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word.size() < 2 || word[0] != '-') {
      positionals.push_back(word);
      continue;
    }
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const Flag* flag = find_flag(command, name);
    if (flag == nullptr) {
      const auto& unbuilt = unbuilt_flags();
      if (command == kServe && std::find(unbuilt.begin(), unbuilt.end(), name) != unbuilt.end()) {
        throw UsageError(fmt::format("argument {}: not supported by this build", name));
      }
      throw UsageError(fmt::format("unrecognized arguments: {}", word));
    }
    if (flag->kind == FlagKind::kSwitch) {
      if (equals != std::string::npos) throw UsageError(fmt::format("argument {}: takes no value", name));
      arguments.values_[name] = {};
      continue;
    }
    std::string value;
    if (equals != std::string::npos) {
      value = word.substr(equals + 1);
    } else if (i + 1 < words.size() && words[i + 1].substr(0, 2) != "--") {
      value = words[++i];
    } else {
      throw UsageError(fmt::format("argument {}: expected one argument", name));
    }
    check_value(*flag, value);
    std::vector<std::string>& values = arguments.values_[name];
    if (!flag->repeatable) values.clear();
    values.push_back(std::move(value));
  }
  check_together(arguments.values_);
  if (command == kBench) {
    arguments.words_ = std::move(positionals);
    return arguments;
  }
  const std::size_t wanted = command == kConvert ? 2 : 1;
  if (positionals.size() < wanted) {
    throw UsageError(fmt::format("the following arguments are required: {}", command == kConvert ? "IN OUT" : "MODEL"));
  }
  if (positionals.size() > wanted) throw UsageError(fmt::format("unrecognized arguments: {}", positionals[wanted]));
  arguments.model_ = positionals[0];
  if (wanted > 1) arguments.output_ = positionals[1];
  return arguments;
}

std::string usage_line(Command command) {
  switch (command) {
    case kServe:
      return "usage: tensorfold serve MODEL [flags]";
    case kChat:
      return "usage: tensorfold chat MODEL [flags]";
    case kVerify:
      return "usage: tensorfold verify MODEL [flags]";
    case kConvert:
      return "usage: tensorfold convert IN OUT [flags]";
    case kBench:
      return "usage: tensorfold bench (MODEL | --synthetic PRESET) kernels|decode|prefill|concurrency|load ... [flags]";
    case kInfo:
      break;
  }
  return "usage: tensorfold info MODEL [flags]";
}

constexpr const char* kBenchText = R"(
Measures this engine, without HTTP. (`benchmark`, which measures a served model, is not part of this build.)

  kernels      what each kind of operation takes in a pass, with the bytes it has to move
  decode       tokens a second of one stream, and what windows of several rows cost
  prefill      tokens a second of prompts
  concurrency  tokens a second of many streams, and whether each gives the tokens that it gives alone
  load         seconds and GB/s from the checkpoint to a model that computes

Before anything is measured a pass checks that logits are finite and, with experts, how the work spreads over them.
)";

std::string_view purpose(Command command) {
  switch (command) {
    case kServe:
      return "Answers OpenAI-style requests from MODEL until it is interrupted.";
    case kChat:
      return "Talks to MODEL in this terminal.";
    case kInfo:
      return "Says what MODEL is (family, sizes, weight formats) and what it needs.";
    case kVerify:
      return "Checks on this machine that replies don't depend on how they are computed: random schedules of requests are\n"
             "run and compared, bit by bit, with one row at a time.";
    case kConvert:
      return "Quantises a full-precision checkpoint or GGUF file to MLX affine weights in the new folder OUT.";
    case kBench:
      break;  // kBenchText
  }
  return "";
}

std::string help_text(Command command) {
  std::string text = usage_line(command) + "\n\n";
  if (const std::string_view what = purpose(command); !what.empty()) text += fmt::format("{}\n\n", what);
  text += command == kConvert ? "IN" : "MODEL";
  text +=
      " is a folder with config.json and safetensors, a .gguf file, or OWNER/NAME in the Hugging Face cache.\n";
  if (command == kBench) text += kBenchText;
  bool first = true;
  for (const Flag& flag : flag_table()) {
    if ((flag.commands & command) == 0) continue;
    if (first) text += "\nflags (default):\n";
    first = false;
    std::string left = std::string(flag.name);
    if (!flag.value_name.empty()) left += fmt::format(" {}", flag.value_name);
    text += fmt::format("  {:<26} {}", left, flag.help);
    if (!flag.choices.empty()) text += fmt::format(" [{}]", fmt::join(flag.choices, ", "));
    text += "\n";
  }
  text += fmt::format("{}  {:<26} {}\n", first ? "\nflags:\n" : "", "--help, -h", "this text");
  return text;
}

std::uint64_t seed_from(const std::string& text) {
  std::uint64_t value = 0;
  for (const char c : text) {
    if (c >= '0' && c <= '9') value = value * 10 + static_cast<std::uint64_t>(c - '0');
  }
  return !text.empty() && text.front() == '-' ? 0 - value : value;
}

}  // namespace tensorfold::cli
