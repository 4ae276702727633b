// See completions.h.
#include "serve/api/completions.h"

#include "serve/api/json_body.h"
#include "serve/api/reply_blocks.h"
#include "serve/api_error.h"

namespace tensorfold {
namespace {

using Json = nlohmann::ordered_json;

std::size_t character_count(std::string_view text) {
  std::size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xc0) != 0x80 ? 1 : 0;
  return count;
}

/// The parallel lists of the legacy format.
class LogprobLists {
 public:
  explicit LogprobLists(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void add(const TokenRecord& record) {
    const std::string label = token_label(tokenizer_, record.chosen.token);
    tokens_.push_back(label);
    offsets_.push_back(offset_);
    offset_ += character_count(token_exact_bytes(tokenizer_, record.chosen.token));
    if (!record.has_logprob) {
      logprobs_.push_back(nullptr);
      top_.push_back(nullptr);
      return;
    }
    logprobs_.push_back(record.chosen.logprob);
    Json alternatives = Json::object();
    for (const TokenLogprob& alternative : record.top) {
      alternatives.emplace(token_label(tokenizer_, alternative.token), alternative.logprob);
    }
    alternatives.emplace(label, record.chosen.logprob);  // the chosen one is always listed
    top_.push_back(std::move(alternatives));
  }

  Json json() && {
    return {{"tokens", std::move(tokens_)},
            {"token_logprobs", std::move(logprobs_)},
            {"top_logprobs", std::move(top_)},
            {"text_offset", std::move(offsets_)}};
  }

 private:
  const Tokenizer& tokenizer_;
  Json tokens_ = Json::array();
  Json logprobs_ = Json::array();
  Json top_ = Json::array();
  Json offsets_ = Json::array();
  std::size_t offset_ = 0;
};

std::string echoed_prompt(const Generation& generation) {
  const GenerationRequest& request = generation.request();
  if (!request.echo) return {};
  if (!request.prompt_is_tokens) return request.prompt_text;
  return generation.model().tokenizer->decode(generation.prompt_tokens(), false);
}

class CompletionFormat final : public ReplyFormat {
 public:
  std::string whole(const Generation& generation) override {
    const GenerationResult& result = generation.result();
    Json entry = choice(echoed_prompt(generation) + result.content, finish_reason_text(result.reason));
    if (generation.request().logprobs_top >= 0) {
      LogprobLists lists(*generation.model().tokenizer);
      for (const TokenRecord& record : result.prompt_records) lists.add(record);
      for (const TokenRecord& record : result.records) lists.add(record);
      entry["logprobs"] = std::move(lists).json();
    }
    if (generation.request().return_token_ids) entry["token_ids"] = result.tokens;
    Json reply = head(generation);
    reply["choices"] = Json::array({std::move(entry)});
    reply["usage"] = usage_block(generation);
    add_runtime_blocks(generation, reply);
    return dump_json(reply);
  }

  std::string stream_open(const Generation& generation) override {
    const std::string prompt = echoed_prompt(generation);
    return prompt.empty() ? std::string() : sse_event(chunk(generation, prompt, nullptr));
  }

  std::string stream_piece(const Generation& generation, const ReplyPiece& piece) override {
    return piece.content.empty() ? std::string() : sse_event(chunk(generation, piece.content, nullptr));
  }

  std::string stream_close(const Generation& generation) override {
    const GenerationResult& result = generation.result();
    Json last = chunk(generation, "", finish_reason_text(result.reason));
    if (generation.request().return_token_ids) last["choices"][0]["token_ids"] = result.tokens;
    add_runtime_blocks(generation, last);
    const bool separate = generation.request().include_usage;
    if (!separate) last["usage"] = usage_block(generation);
    std::string events = sse_event(last);
    if (separate) {
      Json usage = head(generation);
      usage["choices"] = Json::array();
      usage["usage"] = usage_block(generation);
      events += sse_event(usage);
    }
    return events + kSseDone;
  }

  std::string stream_error(const std::string& message) override {
    return "data: " + stream_error_json(message) + "\n\n" + kSseDone;
  }

 private:
  Json head(const Generation& generation) const {
    return {{"id", generation.request().id},
            {"object", "text_completion"},
            {"created", created_},
            {"model", generation.request().model}};
  }
  static Json choice(std::string text, const char* finish) {
    Json entry = {{"text", std::move(text)}, {"index", 0}, {"finish_reason", nullptr}, {"logprobs", nullptr}};
    if (finish != nullptr) entry["finish_reason"] = finish;
    return entry;
  }
  Json chunk(const Generation& generation, std::string text, const char* finish) const {
    Json reply = head(generation);
    reply["choices"] = Json::array({choice(std::move(text), finish)});
    return reply;
  }

  std::int64_t created_ = unix_seconds_now();
};

}  // namespace

std::unique_ptr<ReplyFormat> make_completion_format() {
  return std::make_unique<CompletionFormat>();
}

}  // namespace tensorfold
