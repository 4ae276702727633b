// See reply_blocks.h.
#include "serve/api/reply_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <vector>

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

/// Sums over the choices that a block speaks of.
struct RunTally {
  std::int64_t choices = 0, tokens = 0, rounds = 0, drafted = 0, accepted = 0;
  std::int32_t rows_min = 0;
  double decode_seconds = 0.0;  // of the longest
  std::array<std::int64_t, kDraftKindCount> drafted_by{}, accepted_by{};

  void add(const GenerationResult& result) {
    const StreamStatistics& statistics = result.statistics;
    ++choices;
    tokens += static_cast<std::int64_t>(result.tokens.size());
    rounds += statistics.rounds;
    drafted += statistics.drafted;
    accepted += statistics.accepted;
    decode_seconds = std::max(decode_seconds, statistics.decode_seconds);
    if (statistics.rows_min > 0)
      rows_min = rows_min == 0 ? statistics.rows_min : std::min(rows_min, statistics.rows_min);
    for (std::size_t kind = 0; kind < kDraftKindCount; ++kind) {
      drafted_by[kind] += statistics.by_source[kind].drafted;
      accepted_by[kind] += statistics.by_source[kind].accepted;
    }
  }
};

double ratio(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

/// Draft sources that the engine has, or that drafted.
Json sources_block(const Generation& generation, const RunTally& tally) {
  const std::vector<std::string>& known = generation.model().engine->facts().draft_kinds;
  Json sources = Json::object();
  for (std::size_t kind = 0; kind < kDraftKindCount; ++kind) {
    const char* name = draft_kind_name(static_cast<DraftKind>(kind));
    if (tally.drafted_by[kind] == 0 && std::find(known.begin(), known.end(), name) == known.end()) continue;
    sources[name] = {{"drafted", tally.drafted_by[kind]},
                     {"accepted", tally.accepted_by[kind]},
                     {"acceptance_rate", ratio(tally.accepted_by[kind], tally.drafted_by[kind])}};
  }
  return sources;
}

Json speculative_block(const Generation& generation, const RunTally& tally) {
  return {{"rounds", tally.rounds},
          {"drafted", tally.drafted},
          {"accepted", tally.accepted},
          {"acceptance_rate", ratio(tally.accepted, tally.drafted)},
          {"tokens_per_round", ratio(tally.tokens, tally.rounds)},
          {"sources", sources_block(generation, tally)}};
}

}  // namespace

std::int64_t unix_seconds_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

const char* finish_reason_text(const GenerationResult& result) {
  if (result.reason == FinishReason::kLength) return "length";
  return result.calls.empty() ? "stop" : "tool_calls";
}

Json usage_block(const Generation& generation) {
  const std::size_t prompt = generation.prompt_tokens().size();
  std::size_t completion = 0;
  std::int64_t reasoning = 0;
  std::int32_t cached = generation.result().statistics.cached_tokens;
  for (int choice = 0; choice < generation.choice_count(); ++choice) {
    const GenerationResult& result = generation.result(choice);
    completion += result.tokens.size();
    reasoning += result.reasoning_tokens;
    cached = std::min(cached, result.statistics.cached_tokens);  // what none of them had to compute
  }
  return {{"prompt_tokens", prompt},
          {"completion_tokens", completion},
          {"total_tokens", prompt + completion},
          {"prompt_tokens_details", {{"cached_tokens", cached}}},
          {"completion_tokens_details", {{"reasoning_tokens", reasoning}}}};
}

void add_runtime_blocks(const Generation& generation, std::optional<int> choice, Json& reply) {
  const int first = choice.value_or(0), last = choice.value_or(generation.choice_count() - 1);
  RunTally tally;
  for (int index = first; index <= last; ++index) tally.add(generation.result(index));
  const GenerationResult& result = generation.result(first);
  const Json speculative = speculative_block(generation, tally);
  const double rate = tally.tokens > tally.choices && tally.decode_seconds > 0
                          ? static_cast<double>(tally.tokens - tally.choices) / tally.decode_seconds
                          : 0.0;
  Json effort = generation.effort() ? Json(*generation.effort()) : Json(nullptr);
  if (!generation.thinking()) effort = "none";
  Json block = {{"enable_thinking", generation.thinking()},
                {"reasoning_effort", effort},
                {"engine", "cpp"},
                {"tokens_per_second", rate},
                {"seconds", tally.decode_seconds},
                {"queue_seconds", result.statistics.queue_seconds},
                {"prefill_seconds", result.statistics.prefill_seconds},
                {"prefill_widths", result.statistics.prefill_widths},
                {"time_to_first_token", optional_number(result.time_to_first_token_seconds)},
                {"sampling", generation.sampling(first).temperature > 0 ? "exact" : "greedy"},
                {"seed", generation.sampling(first).seed},
                {"drafts", generation.request().drafts},
                {"token_sha", result.token_sha},
                {"min_rows", tally.rows_min}};
  for (const auto& [name, value] : speculative.items()) block[name] = value;
  reply["exact_mode"] = "exact";
  reply["tensorfold"] = std::move(block);
  reply["speculative"] = speculative;
}

void add_choice_facts(const Generation& generation, int choice, Json& entry) {
  const GenerationResult& result = generation.result(choice);
  if (generation.request().return_token_ids) entry["token_ids"] = result.tokens;
  if (generation.choice_count() == 1) return;
  entry["seed"] = generation.sampling(choice).seed;
  entry["token_sha"] = result.token_sha;
  add_stop_sequence(result, entry);
}

void add_stop_sequence(const GenerationResult& result, Json& object) {
  if (result.stop_sequence) object["stop_sequence"] = *result.stop_sequence;
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
