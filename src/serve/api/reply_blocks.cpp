// See reply_blocks.h.
#include "serve/api/reply_blocks.h"

#include <fmt/format.h>

#include <chrono>

#include "serve/api/json_body.h"

namespace tensorfold {
namespace {

using Json = nlohmann::ordered_json;

/// Length of a well-formed UTF-8 sequence at the front of `text`, 0 when there is none.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  const std::size_t length = first < 0x80   ? 1
                             : first < 0xc2 ? 0
                             : first < 0xe0 ? 2
                             : first < 0xf0 ? 3
                             : first < 0xf5 ? 4
                                            : 0;
  if (length == 0 || length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  if (first == 0xe0 && byte(1) < 0xa0) return 0;
  if (first == 0xed && byte(1) > 0x9f) return 0;
  if (first == 0xf0 && byte(1) < 0x90) return 0;
  if (first == 0xf4 && byte(1) > 0x8f) return 0;
  return length;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

Json optional_number(const std::optional<double>& value) {
  return value ? Json(*value) : Json(nullptr);
}

}  // namespace

std::int64_t unix_seconds_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

const char* finish_reason_text(FinishReason reason) {
  return reason == FinishReason::kLength ? "length" : "stop";
}

Json usage_block(const Generation& generation) {
  const GenerationResult& result = generation.result();
  const std::size_t prompt = generation.prompt_tokens().size();
  return {{"prompt_tokens", prompt},
          {"completion_tokens", result.tokens.size()},
          {"total_tokens", prompt + result.tokens.size()},
          {"prompt_tokens_details", {{"cached_tokens", result.statistics.cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", result.reasoning_tokens}}}};
}

void add_runtime_blocks(const Generation& generation, Json& reply) {
  const GenerationResult& result = generation.result();
  const StreamStatistics& statistics = result.statistics;
  const double seconds = statistics.decode_seconds;
  const std::size_t tokens = result.tokens.size();
  const double rate = tokens > 1 && seconds > 0 ? static_cast<double>(tokens - 1) / seconds : 0.0;
  Json effort = generation.effort() ? Json(*generation.effort()) : Json(nullptr);
  if (!generation.thinking()) effort = "none";
  const Json speculative = {
      {"rounds", statistics.rounds},
      {"drafted", statistics.drafted},
      {"accepted", statistics.accepted},
      {"acceptance_rate", statistics.drafted > 0 ? static_cast<double>(statistics.accepted) / statistics.drafted : 0.0},
      {"tokens_per_round", statistics.rounds > 0 ? static_cast<double>(tokens) / statistics.rounds : 0.0}};
  Json block = {{"enable_thinking", generation.thinking()},
                {"reasoning_effort", effort},
                {"engine", "cpp"},
                {"tokens_per_second", rate},
                {"seconds", seconds},
                {"prefill_seconds", statistics.prefill_seconds},
                {"time_to_first_token", optional_number(result.time_to_first_token_seconds)},
                {"sampling", generation.sampling().temperature > 0 ? "exact" : "greedy"},
                {"seed", generation.sampling().seed},
                {"drafts", generation.request().drafts},
                {"token_sha", result.token_sha}};
  for (const auto& [name, value] : speculative.items()) block[name] = value;
  reply["exact_mode"] = "exact";
  if (result.stop_sequence) reply["stop_sequence"] = *result.stop_sequence;
  reply["tensorfold"] = std::move(block);
  reply["speculative"] = speculative;
}

std::string sse_event(const Json& json) {
  return "data: " + dump_json(json) + "\n\n";
}

std::string token_exact_bytes(const Tokenizer& tokenizer, std::int32_t token) {
  std::string bytes = tokenizer.token_bytes(token);
  if (bytes.empty()) bytes = tokenizer.token_text(token);
  return bytes;
}

std::string token_label(const Tokenizer& tokenizer, std::int32_t token) {
  const std::string bytes = token_exact_bytes(tokenizer, token);
  if (is_utf8(bytes)) return bytes;
  std::string label = "bytes:";
  for (const char c : bytes) label += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return label;
}

}  // namespace tensorfold
