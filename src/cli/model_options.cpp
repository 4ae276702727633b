// See model_options.h.
#include "cli/model_options.h"

#include <charconv>

#include <fmt/format.h>

#include <algorithm>

namespace tensorfold::cli {
namespace {

constexpr int kParallelMax = 4096;

std::int32_t lanes_from(const std::optional<std::string>& text) {
  if (!text || *text == "auto") return 0;
  int lanes = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), lanes);
  if (error != std::errc() || end != text->data() + text->size()) {
    throw UsageError(fmt::format("argument --parallel: invalid value: '{}' (a number or auto)", *text));
  }
  return std::clamp(lanes, 1, kParallelMax);
}

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

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

}  // namespace

ServedModelOptions model_options(const Arguments& arguments) {
  ServedModelOptions options;
  options.model = arguments.model();
  options.name = arguments.text("--name").value_or("");
  options.aliases = arguments.list("--alias");
  options.backend = arguments.text("--backend").value_or("auto");
  options.rounding = arguments.text("--rounding").value_or("none");
  if (arguments.has("--rounding") && options.backend != "reference") {
    throw UsageError("argument --rounding: only with --backend reference");
  }
  options.threads = static_cast<int>(arguments.integer("--threads").value_or(0));
  options.context = static_cast<std::int32_t>(arguments.integer("--context").value_or(0));
  options.lanes = lanes_from(arguments.text("--parallel"));
  options.chat_template_file = arguments.text("--chat-template").value_or("");
  options.sampling.temperature = arguments.number("--temperature");
  options.sampling.top_p = arguments.number("--top-p");
  options.sampling.top_k = arguments.integer("--top-k");
  options.sampling.min_p = arguments.number("--min-p");
  options.sampling.max_tokens = arguments.integer("--max-tokens");
  if (const auto seed = arguments.text("--seed")) options.sampling.seed = seed_from(*seed);
  options.drafts = draft_flags(arguments);
  options.thinking = !arguments.has("--no-thinking");
  options.effort = arguments.text("--reasoning-effort");
  return options;
}

}  // namespace tensorfold::cli
