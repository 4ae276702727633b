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

Json logprobs_block(const Generation& generation, const std::vector<TokenRecord>& records) {
  if (generation.request().logprobs_top < 0) return nullptr;
  const Tokenizer& tokenizer = *generation.model().tokenizer;
  Json content = Json::array();
  for (const TokenRecord& record : records) {
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
    Json choices = Json::array();
    for (int index = 0; index < generation.choice_count(); ++index) choices.push_back(whole_choice(generation, index));
    Json reply = head(generation, "chat.completion");
    reply["choices"] = std::move(choices);
    reply["usage"] = usage_block(generation);
    if (generation.choice_count() == 1) add_stop_sequence(generation.result(), reply);
    add_runtime_blocks(generation, std::nullopt, reply);
    return dump_json(reply);
  }

  std::string stream_open(const Generation& generation) override {
    std::string events;
    role_sent_.assign(static_cast<std::size_t>(generation.choice_count()), false);
    if (!generation.request().tools.is_null()) return events;  // the role comes with the first delta
    for (int index = 0; index < generation.choice_count(); ++index) send_role(generation, index, events);
    return events;
  }

  std::string stream_piece(const Generation& generation, const ReplyPiece& piece) override {
    std::string events;
    send_role(generation, piece.choice, events);
    if (!piece.reasoning.empty()) {
      events += sse_event(chunk(generation, piece.choice, {{"reasoning_content", piece.reasoning}}));
    }
    const bool with_text = !piece.content.empty() || (!piece.records.empty() && !piece.ends_choice);
    if (with_text) {
      Json entry = chunk(generation, piece.choice, {{"content", piece.content}});
      set_logprobs(generation, piece, entry);
      events += sse_event(entry);
    }
    for (const CallDelta& call : piece.calls) send_call(generation, piece.choice, call, events);
    if (piece.ends_choice) events += sse_event(last_chunk(generation, piece, !with_text));
    return events;
  }

  std::string stream_close(const Generation& generation) override {
    if (!generation.request().include_usage) return kSseDone;
    Json usage = head(generation, "chat.completion.chunk");
    usage["choices"] = Json::array();
    usage["usage"] = usage_block(generation);
    return sse_event(usage) + kSseDone;
  }

  std::string stream_error(const std::string& message) override {
    return "data: " + stream_error_json(message) + "\n\n" + kSseDone;
  }

 private:
  static Json whole_choice(const Generation& generation, int index) {
    const GenerationResult& result = generation.result(index);
    Json message = {{"role", "assistant"}, {"content", result.content}};
    if (!result.calls.empty()) message["content"] = nullptr;
    if (!result.reasoning.empty()) message["reasoning_content"] = result.reasoning;
    if (!result.calls.empty()) message["tool_calls"] = calls_block(result);
    const std::vector<TokenRecord> none;
    Json choice = {{"index", index},
                   {"message", std::move(message)},
                   {"finish_reason", finish_reason_text(result)},
                   {"logprobs", logprobs_block(generation, result.calls.empty() ? result.records : none)}};
    add_choice_facts(generation, index, choice);
    return choice;
  }
  static Json calls_block(const GenerationResult& result) {
    Json calls = Json::array();
    for (const ReplyCall& call : result.calls) {
      calls.push_back(
          {{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
    }
    return calls;
  }
  /// Once for each choice, before its first delta.
  void send_role(const Generation& generation, int index, std::string& events) {
    if (role_sent_[static_cast<std::size_t>(index)]) return;
    role_sent_[static_cast<std::size_t>(index)] = true;
    events += sse_event(chunk(generation, index, {{"role", "assistant"}}));
  }
  /// The head of a call and its arguments are deltas of their own.
  void send_call(const Generation& generation, int choice, const CallDelta& call, std::string& events) const {
    if (!call.name.empty()) {
      const Json head = {{"index", call.index},
                         {"id", call.id},
                         {"type", "function"},
                         {"function", {{"name", call.name}, {"arguments", ""}}}};
      events += sse_event(chunk(generation, choice, {{"tool_calls", Json::array({head})}}));
    }
    if (call.arguments.empty()) return;
    const Json more = {{"index", call.index}, {"function", {{"arguments", call.arguments}}}};
    events += sse_event(chunk(generation, choice, {{"tool_calls", Json::array({more})}}));
  }
  static void set_logprobs(const Generation& generation, const ReplyPiece& piece, Json& entry) {
    if (!piece.records.empty()) entry["choices"][0]["logprobs"] = logprobs_block(generation, piece.records);
  }
  /// The chunk that ends a choice; `with_records`: log-probabilities that no text follows (the end token's) go with it.
  Json last_chunk(const Generation& generation, const ReplyPiece& piece, bool with_records) const {
    const GenerationResult& result = generation.result(piece.choice);
    Json last = chunk(generation, piece.choice, Json::object(), finish_reason_text(result));
    if (with_records) set_logprobs(generation, piece, last);
    if (generation.request().return_token_ids) last["choices"][0]["token_ids"] = result.tokens;
    add_stop_sequence(result, last);
    add_runtime_blocks(generation, piece.choice, last);
    if (piece.ends_reply && !generation.request().include_usage) last["usage"] = usage_block(generation);
    return last;
  }
  Json head(const Generation& generation, const char* object) const {
    return {{"id", generation.request().id},
            {"object", object},
            {"created", created_},
            {"model", generation.request().model}};
  }
  Json chunk(const Generation& generation, int index, Json delta, const char* finish = nullptr) const {
    Json reply = head(generation, "chat.completion.chunk");
    Json choice = {{"index", index}, {"delta", std::move(delta)}, {"finish_reason", nullptr}};
    if (finish != nullptr) choice["finish_reason"] = finish;
    reply["choices"] = Json::array({std::move(choice)});
    return reply;
  }

  std::int64_t created_ = unix_seconds_now();
  std::vector<bool> role_sent_;
};

}  // namespace

std::unique_ptr<ReplyFormat> make_chat_format() {
  return std::make_unique<ChatFormat>();
}

}  // namespace tensorfold
