// POST /v1/tokenize and /v1/detokenize (api.md 3.15): the ids are exactly those that the generating routes would run.
#include "serve/api/fields.h"
#include "serve/api/json_body.h"
#include "serve/api/request_parser.h"
#include "serve/api/tool_fields.h"
#include "serve/api_error.h"
#include "serve/chat_prompt.h"
#include "serve/handlers.h"

namespace tensorfold {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::int32_t> tokenized(const ServedModel& model, const Json& body) {
  const Fields fields(body);
  const bool add_special_tokens = fields.boolean("add_special_tokens").value_or(true);
  const bool add_generation_prompt = fields.boolean("add_generation_prompt").value_or(true);
  if (const Json* messages = fields.array("messages")) {
    refuse_unbuilt_fields(body);
    GenerationRequest request;
    request.is_chat = true;
    request.messages = *messages;
    parse_template_fields(body, request);
    parse_tool_fields(body, request);
    return render_chat_prompt(model, request, add_generation_prompt).tokens;
  }
  const std::optional<std::string> prompt = fields.string("prompt");
  if (!prompt) throw field_error("prompt", "is required: a string (or send 'messages')");
  return model.tokenizer->encode(*prompt, {.add_special_tokens = add_special_tokens});
}

}  // namespace

HttpResponse handle_tokenize(const ServedModel& model, const HttpRequest& request) {
  const Json body = parse_json_body(request.body);
  const bool with_texts = Fields(body).boolean("return_token_strs").value_or(false);
  const std::vector<std::int32_t> tokens = tokenized(model, body);
  Json reply = {{"count", tokens.size()}, {"max_model_len", model.engine->facts().context}, {"tokens", tokens}};
  if (with_texts) {
    Json texts = Json::array();
    for (const std::int32_t token : tokens) texts.push_back(std::string(model.tokenizer->token_text(token)));
    reply["token_strs"] = std::move(texts);
  }
  HttpResponse response;
  response.body = dump_json(reply);
  return response;
}

HttpResponse handle_detokenize(const ServedModel& model, const HttpRequest& request) {
  const Json body = parse_json_body(request.body);
  const Json* list = Fields(body).array("tokens");
  if (list == nullptr) throw field_error("tokens", "is required: a list of token ids");
  if (list->size() == 1 && list->front().is_array()) list = &list->front();
  const auto size = static_cast<std::uint64_t>(model.tokenizer->size());
  std::vector<std::int32_t> tokens;
  for (const Json& item : *list) {
    const bool inside = item.is_number_integer() && (item.is_number_unsigned() || item.get<std::int64_t>() >= 0) &&
                        item.get<std::uint64_t>() < size;
    if (!inside) throw field_error("tokens", fmt::format("every id must be an integer below {}", size));
    tokens.push_back(item.get<std::int32_t>());
  }
  HttpResponse response;
  response.body = dump_json({{"prompt", model.tokenizer->decode(tokens, false)}});
  return response;
}

}  // namespace tensorfold
