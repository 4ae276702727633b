// See chat.h.
#include "serve/api/chat.h"

#include "serve/api/json_body.h"
#include "serve/api/reply_blocks.h"
#include "serve/api_error.h"

namespace tensorfold {
namespace {

using Json = nlohmann::ordered_json;

Json logprob_entry(const Tokenizer& tokenizer, const TokenLogprob& token) {
  const std::string bytes = token_exact_bytes(tokenizer, token.token);
  Json list = Json::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return {{"token", token_label(tokenizer, token.token)}, {"logprob", token.logprob}, {"bytes", std::move(list)}};
}

Json logprobs_block(const Generation& generation) {
  const Tokenizer& tokenizer = *generation.model().tokenizer;
  Json content = Json::array();
  for (const TokenRecord& record : generation.result().records) {
    Json entry = logprob_entry(tokenizer, record.chosen);
    Json top = Json::array();
    for (const TokenLogprob& alternative : record.top) top.push_back(logprob_entry(tokenizer, alternative));
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

class ChatFormat final : public ReplyFormat {
 public:
  std::string whole(const Generation& generation) override {
    const GenerationResult& result = generation.result();
    Json message = {{"role", "assistant"}, {"content", result.content}};
    if (!result.reasoning.empty()) message["reasoning_content"] = result.reasoning;
    Json choice = {{"index", 0},
                   {"message", std::move(message)},
                   {"finish_reason", finish_reason_text(result.reason)},
                   {"logprobs", nullptr}};
    if (generation.request().logprobs_top >= 0) choice["logprobs"] = logprobs_block(generation);
    if (generation.request().return_token_ids) choice["token_ids"] = result.tokens;
    Json reply = head(generation, "chat.completion");
    reply["choices"] = Json::array({std::move(choice)});
    reply["usage"] = usage_block(generation);
    add_runtime_blocks(generation, reply);
    return dump_json(reply);
  }

  std::string stream_open(const Generation& generation) override {
    return sse_event(chunk(generation, {{"role", "assistant"}}, nullptr));
  }

  std::string stream_piece(const Generation& generation, const ReplyPiece& piece) override {
    std::string events;
    if (!piece.reasoning.empty()) {
      events += sse_event(chunk(generation, {{"reasoning_content", piece.reasoning}}, nullptr));
    }
    if (!piece.content.empty()) events += sse_event(chunk(generation, {{"content", piece.content}}, nullptr));
    return events;
  }

  std::string stream_close(const Generation& generation) override {
    const GenerationResult& result = generation.result();
    Json last = chunk(generation, Json::object(), finish_reason_text(result.reason));
    if (generation.request().return_token_ids) last["choices"][0]["token_ids"] = result.tokens;
    add_runtime_blocks(generation, last);
    const bool separate = generation.request().include_usage;
    if (!separate) last["usage"] = usage_block(generation);
    std::string events = sse_event(last);
    if (separate) {
      Json usage = head(generation, "chat.completion.chunk");
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
  Json head(const Generation& generation, const char* object) const {
    return {{"id", generation.request().id},
            {"object", object},
            {"created", created_},
            {"model", generation.request().model}};
  }
  Json chunk(const Generation& generation, Json delta, const char* finish) const {
    Json reply = head(generation, "chat.completion.chunk");
    Json choice = {{"index", 0}, {"delta", std::move(delta)}, {"finish_reason", nullptr}};
    if (finish != nullptr) choice["finish_reason"] = finish;
    reply["choices"] = Json::array({std::move(choice)});
    return reply;
  }

  std::int64_t created_ = unix_seconds_now();
};

}  // namespace

std::unique_ptr<ReplyFormat> make_chat_format() {
  return std::make_unique<ChatFormat>();
}

}  // namespace tensorfold
