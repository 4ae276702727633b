// See generation_log.h.
#include "serve/generation_log.h"

#include <spdlog/spdlog.h>

namespace tensorfold {

namespace {

void log_choice(const Generation& generation, int choice, bool client_left) {
  const GenerationResult& result = generation.result(choice);
  const StreamStatistics& statistics = result.statistics;
  const std::string id = choice == 0 ? generation.request().id : fmt::format("{}#{}", generation.request().id, choice);
  if (result.reason == FinishReason::kCancelled) {
    spdlog::info("ended {} {}", id, client_left ? "the client left" : "cancelled");
    return;
  }
  if (result.reason == FinishReason::kError) {
    spdlog::warn("ended {} {}", id, result.message);
    return;
  }
  const char* finish = result.reason == FinishReason::kLength ? "length" : result.calls.empty() ? "stop" : "tool_calls";
  spdlog::info("done {} prompt={} cached={} thinking={} effort={} tokens={} sha={} finish={} rounds={} accepted={}/{}",
               id, statistics.prompt_tokens, statistics.cached_tokens, generation.thinking() ? "on" : "off",
               generation.effort().value_or("-"), result.tokens.size(), result.token_sha, finish, statistics.rounds,
               statistics.accepted, statistics.drafted);
  const bool cut_in_thought = generation.thinking() && result.reason == FinishReason::kLength &&
                              result.reasoning_tokens == static_cast<std::int32_t>(result.tokens.size()) &&
                              !result.tokens.empty();
  if (cut_in_thought) {
    spdlog::warn(
        "{} used up max_tokens while thinking: raise max_tokens, or send \"chat_template_kwargs\": "
        "{{\"enable_thinking\": false}}",
        id);
  }
}

}  // namespace

void log_generation(const Generation& generation, bool client_left) {
  for (int choice = 0; choice < generation.choice_count(); ++choice) log_choice(generation, choice, client_left);
}

}  // namespace tensorfold
