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
  options.thinking = !arguments.has("--no-thinking");
  options.thinking_budget = arguments.integer("--thinking-budget").value_or(0);
  options.effort = arguments.text("--reasoning-effort");
  return options;
}

}  // namespace tensorfold::cli
