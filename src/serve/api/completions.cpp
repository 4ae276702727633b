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

/// The parallel lists of the legacy format. Offsets count the characters of a choice's whole text, whatever chunks it
/// comes in.
class LogprobLists {
 public:
  void add(const Tokenizer& tokenizer, const std::vector<TokenRecord>& records) {
    for (const TokenRecord& record : records) add(tokenizer, record);
  }

  /// What was added since the last call.
  Json take() {
    Json lists = {{"tokens", std::move(tokens_)},
                  {"token_logprobs", std::move(logprobs_)},
                  {"top_logprobs", std::move(top_)},
                  {"text_offset", std::move(offsets_)}};
    tokens_ = logprobs_ = top_ = offsets_ = Json::array();
    return lists;
  }

 private:
  void add(const Tokenizer& tokenizer, const TokenRecord& record) {
    const std::string label = token_label(tokenizer, record.chosen.token);
    tokens_.push_back(label);
    offsets_.push_back(offset_);
    offset_ += character_count(token_exact_bytes(tokenizer, record.chosen.token));
    if (!record.has_logprob) {
      logprobs_.push_back(nullptr);
      top_.push_back(nullptr);
      return;
    }
    logprobs_.push_back(record.chosen.logprob);
    Json alternatives = Json::object();
    for (const TokenLogprob& alternative : record.top) {
      alternatives.emplace(token_label(tokenizer, alternative.token), alternative.logprob);
    }
    alternatives.emplace(label, record.chosen.logprob);  // the chosen one is always listed
    top_.push_back(std::move(alternatives));
  }

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
    Json choices = Json::array();
    for (int index = 0; index < generation.choice_count(); ++index) choices.push_back(whole_choice(generation, index));
    Json reply = head(generation);
    reply["choices"] = std::move(choices);
    reply["usage"] = usage_block(generation);
    if (generation.choice_count() == 1) add_stop_sequence(generation.result(), reply);
    add_runtime_blocks(generation, std::nullopt, reply);
    return dump_json(reply);
  }

  std::string stream_open(const Generation& generation) override {
    streamed_.resize(static_cast<std::size_t>(generation.choice_count()));
    return {};
  }

  std::string stream_piece(const Generation& generation, const ReplyPiece& piece) override {
    StreamedChoice& streamed = streamed_.at(static_cast<std::size_t>(piece.choice));
    std::string events;
    if (generation.request().echo && !streamed.echoed) {
      streamed.echoed = true;  // the prompt's scores have come before the first piece
      const std::vector<TokenRecord>& scores = generation.result(piece.choice).prompt_records;
      events += sse_event(chunk(generation, piece.choice, echoed_prompt(generation), scores));
    }
    const bool with_text = !piece.content.empty() || (!piece.records.empty() && !piece.ends_choice);
    if (with_text) events += sse_event(chunk(generation, piece.choice, piece.content, piece.records));
    if (piece.ends_choice) {
      static const std::vector<TokenRecord> kNone;
      events += sse_event(last_chunk(generation, piece, with_text ? kNone : piece.records));
    }
    return events;
  }

  std::string stream_close(const Generation& generation) override {
    if (!generation.request().include_usage) return kSseDone;
    Json usage = head(generation);
    usage["choices"] = Json::array();
    usage["usage"] = usage_block(generation);
    return sse_event(usage) + kSseDone;
  }

  std::string stream_error(const std::string& message) override {
    return "data: " + stream_error_json(message) + "\n\n" + kSseDone;
  }

 private:
  struct StreamedChoice {
    bool echoed = false;
    LogprobLists lists;
  };

  static Json whole_choice(const Generation& generation, int index) {
    const GenerationResult& result = generation.result(index);
    Json entry = {{"text", echoed_prompt(generation) + result.content},
                  {"index", index},
                  {"finish_reason", finish_reason_text(result)},
                  {"logprobs", nullptr}};
    if (generation.request().logprobs_top >= 0) {
      const Tokenizer& tokenizer = *generation.model().tokenizer;
      LogprobLists lists;
      lists.add(tokenizer, result.prompt_records);
      lists.add(tokenizer, result.records);
      entry["logprobs"] = lists.take();
    }
    add_choice_facts(generation, index, entry);
    return entry;
  }
  Json head(const Generation& generation) const {
    return {{"id", generation.request().id},
            {"object", "text_completion"},
            {"created", created_},
            {"model", generation.request().model}};
  }
  Json chunk(const Generation& generation, int index, std::string text, const std::vector<TokenRecord>& records) {
    Json choice = {{"text", std::move(text)}, {"index", index}, {"finish_reason", nullptr}, {"logprobs", nullptr}};
    if (!records.empty()) {
      LogprobLists& lists = streamed_.at(static_cast<std::size_t>(index)).lists;
      lists.add(*generation.model().tokenizer, records);
      choice["logprobs"] = lists.take();
    }
    Json reply = head(generation);
    reply["choices"] = Json::array({std::move(choice)});
    return reply;
  }
  Json last_chunk(const Generation& generation, const ReplyPiece& piece, const std::vector<TokenRecord>& records) {
    const GenerationResult& result = generation.result(piece.choice);
    Json last = chunk(generation, piece.choice, "", records);
    last["choices"][0]["finish_reason"] = finish_reason_text(result);
    if (generation.request().return_token_ids) last["choices"][0]["token_ids"] = result.tokens;
    add_stop_sequence(result, last);
    add_runtime_blocks(generation, piece.choice, last);
    if (piece.ends_reply && !generation.request().include_usage) last["usage"] = usage_block(generation);
    return last;
  }

  std::vector<StreamedChoice> streamed_;
  std::int64_t created_ = unix_seconds_now();
};

}  // namespace

std::unique_ptr<ReplyFormat> make_completion_format() {
  return std::make_unique<CompletionFormat>();
}

}  // namespace tensorfold
