// See model_options.h.
#include "cli/model_options.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/limits.h"

namespace tensorfold::cli {
namespace {

std::int32_t lanes_from(const std::optional<std::string>& text) {
  if (!text || *text == "auto") return 0;
  int lanes = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), lanes);
  if (error == std::errc::invalid_argument || end != text->data() + text->size()) {
    throw UsageError(fmt::format("argument --parallel: invalid value: '{}' (a number or auto)", *text));
  }
  if (error != std::errc() || lanes < 1 || lanes > limits::kLanesMax) {
    throw UsageError(
        fmt::format("argument --parallel: must be between 1 and {}, or auto, not {}", limits::kLanesMax, *text));
  }
  return lanes;
}

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

std::int64_t bytes_from_gib(double gib) {
  return static_cast<std::int64_t>(gib * kGib);
}

std::string default_learn_folder() {
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') throw UsageError("argument --learn-dir: needed, as there is no HOME");
  return std::string(home) + "/.cache/tensorfold/learned";
}

LearnOptions learn_options(const Arguments& arguments) {
  LearnOptions learn;
  const bool wanted = arguments.has("--learn") || arguments.has("--learn-dir") || arguments.has("--learn-gib") ||
                      arguments.has("--learn-conversations");
  for (const char* name : {"--learn-min-free-gib", "--learn-daily-gib"}) {
    if (!wanted && arguments.has(name)) throw UsageError(fmt::format("argument {}: only with --learn", name));
  }
  if (!wanted) return learn;
  if (arguments.number("--prompt-cache-gib") == 0.0) {
    throw UsageError("argument --learn: not allowed with --prompt-cache-gib 0, as prefixes pass through memory");
  }
  learn.folder = arguments.text("--learn-dir").value_or("");
  if (learn.folder.empty()) learn.folder = default_learn_folder();
  learn.conversations = arguments.has("--learn-conversations");
  if (const auto gib = arguments.number("--learn-gib"))
    learn.bytes_max = static_cast<std::uint64_t>(bytes_from_gib(*gib));
  if (const auto gib = arguments.number("--learn-min-free-gib")) {
    learn.free_bytes_min = static_cast<std::uint64_t>(bytes_from_gib(*gib));
  }
  if (const auto gib = arguments.number("--learn-daily-gib")) {
    learn.daily_bytes_max = static_cast<std::uint64_t>(bytes_from_gib(*gib));
  }
  return learn;
}

DraftFlags draft_flags(const Arguments& arguments) {
  DraftFlags flags;
  flags.drafts = !arguments.has("--no-drafts");
  flags.drafter = arguments.text("--drafter").value_or("");
  flags.drafter_bits = static_cast<std::int32_t>(arguments.integer("--drafter-bits").value_or(flags.drafter_bits));
  if (const auto levels = arguments.integer("--mtp-drafts")) flags.mtp_drafts = static_cast<std::int32_t>(*levels);
  flags.mtp_confidence = arguments.number("--mtp-confidence");
  const bool recall = arguments.has("--recall") || arguments.has("--recall-dir") || arguments.has("--recall-gib") ||
                      arguments.has("--recall-read-only");
  if (!recall) return flags;
  flags.recall.emplace();
  flags.recall->folder = arguments.text("--recall-dir").value_or("");
  if (const auto gib = arguments.number("--recall-gib"))
    flags.recall->bytes_max = static_cast<std::uint64_t>(*gib * kGib);
  flags.recall->read_only = arguments.has("--recall-read-only");
  return flags;
}

std::optional<SamplingFlags> instruct_from(const std::string& rule) {
  try {
    return parse_instruct_sampling(rule);
  } catch (const Error& error) {
    throw UsageError(fmt::format("argument --instruct-sampling: {}", error.what()));
  }
}

/// TENSORFOLD_SEED_SALT; 0 when it isn't set.
std::int64_t seed_salt() {
  const char* const text = std::getenv("TENSORFOLD_SEED_SALT");
  if (text == nullptr || *text == '\0') return 0;
  std::int64_t salt = 0;
  const char* const end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(*text == '+' ? text + 1 : text, end, salt);
  if (error != std::errc() || stop != end) {
    fail(ErrorCode::kInvalidArgument, "TENSORFOLD_SEED_SALT is '{}'; give an integer of at most 64 bits", text);
  }
  return salt;
}

}  // namespace

BackendChoice backend_choice(const Arguments& arguments) {
  BackendChoice choice;
  choice.backend = arguments.text("--backend").value_or("auto");
  choice.rounding = arguments.text("--rounding").value_or("none");
  if (arguments.has("--rounding") && choice.backend != "reference") {
    throw UsageError("argument --rounding: only with --backend reference");
  }
  choice.threads = static_cast<int>(arguments.integer("--threads").value_or(0));
  choice.device = static_cast<int>(arguments.integer("--device").value_or(-1));
  if (arguments.has("--device") && choice.backend != "auto" && choice.backend != "cuda") {
    throw UsageError("argument --device: only with --backend cuda or auto");
  }
  return choice;
}

ServedModelOptions model_options(const Arguments& arguments) {
  ServedModelOptions options;
  options.model = arguments.model();
  options.name = arguments.text("--name").value_or("");
  options.aliases = arguments.list("--alias");
  static_cast<BackendChoice&>(options) = backend_choice(arguments);
  options.context = static_cast<std::int32_t>(arguments.integer("--context").value_or(0));
  options.lanes = lanes_from(arguments.text("--parallel"));
  if (const auto gib = arguments.number("--prompt-cache-gib")) options.prompt_cache_bytes = bytes_from_gib(*gib);
  options.prompt_cache_over_cap = arguments.has("--prompt-cache-over-cap");
  options.prompt_cache_shared = arguments.text("--prompt-cache-scope") == "all";
  options.learn = learn_options(arguments);
  options.chat_template_file = arguments.text("--chat-template").value_or("");
  options.sampling.temperature = arguments.number("--temperature");
  options.sampling.top_p = arguments.number("--top-p");
  options.sampling.top_k = arguments.integer("--top-k");
  options.sampling.min_p = arguments.number("--min-p");
  options.sampling.max_tokens = arguments.integer("--max-tokens");
  if (const auto seed = arguments.text("--seed")) options.sampling.seed = seed_from(*seed);
  options.drafts = draft_flags(arguments);
  options.sampling.seed_from_prompt = arguments.has("--prompt-seed");
  options.sampling.seed_salt = seed_salt();
  if (const auto rule = arguments.text("--instruct-sampling")) options.instruct_sampling = instruct_from(*rule);
  options.thinking = !arguments.has("--no-thinking");
  options.thinking_budget = arguments.integer("--thinking-budget").value_or(0);
  options.effort = arguments.text("--reasoning-effort");
  return options;
}

}  // namespace tensorfold::cli
