// See request_parser.h. Field rules: api.md 3.4 and 3.6.
#include "serve/api/request_parser.h"

#include "base/limits.h"
#include "serve/api/fields.h"
#include "serve/api/json_body.h"
#include "serve/api/structured_fields.h"
#include "serve/api/tool_fields.h"
#include "serve/api_error.h"
#include "serve/api_keys.h"
#include "serve/chat_prompt.h"
#include "text/messages.h"

namespace tensorfold {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kTopLogprobsMax = 20;
constexpr double kPenaltyMax = 2.0;
constexpr std::size_t kIdDigits = 32;

void parse_sampling(const Fields& fields, std::int32_t vocabulary_size, GenerationRequest& request) {
  request.temperature = fields.number("temperature");
  request.top_p = fields.number("top_p");
  request.top_k = fields.integer("top_k");
  request.min_p = fields.number("min_p", 0.0, 1.0);
  request.presence_penalty = fields.number("presence_penalty", -kPenaltyMax, kPenaltyMax);
  request.frequency_penalty = fields.number("frequency_penalty", -kPenaltyMax, kPenaltyMax);
  request.repetition_penalty = fields.number("repetition_penalty");
  if (request.repetition_penalty && *request.repetition_penalty <= 0.0) {
    throw field_error("repetition_penalty", "must be above 0");
  }
  request.logit_bias = fields.token_biases("logit_bias", vocabulary_size);
  request.seed = fields.seed("seed");
  request.stop = fields.stop_strings("stop");
  request.ignore_eos = fields.boolean("ignore_eos").value_or(false);
}

/// The first of the two names that is present and not 0. Without `zero_allowed` 0 is refused, as OpenAI's API does for
/// chats: a reply of no tokens is nothing that a client wants, and "no limit" nothing that it can rely on.
void parse_max_tokens(const Fields& fields, GenerationRequest& request, bool zero_allowed) {
  bool zero = false;
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    const std::optional<std::int64_t> value = fields.integer(name);
    if (!value) continue;
    if (*value < 0) throw field_error(name, "must not be negative");
    if (*value == 0 && !zero_allowed) {
      throw field_error(name, "must be at least 1; leave it out for the server's own limit");
    }
    if (*value > 0 && !request.max_tokens) {
      request.max_tokens = value;
      request.max_tokens_field = name;
    }
    zero = zero || *value == 0;
  }
  if (zero && !request.max_tokens) request.max_tokens = 0;
}

/// n, and best_of where it asks for nothing more.
void parse_choices(const Fields& fields, GenerationRequest& request) {
  const std::int64_t choices = fields.integer("n").value_or(1);
  if (choices < 1 || choices > limits::kChoicesMax) {
    throw field_error("n", fmt::format("must be between 1 and {}", limits::kChoicesMax));
  }
  request.choices = static_cast<int>(choices);
  if (fields.integer("best_of").value_or(choices) != choices) {
    throw field_error("best_of", "must equal n: all replies that are drawn are returned");
  }
}

bool parse_background(const Fields& fields) {
  const std::string priority = fields.string("priority").value_or("normal");
  if (priority != "normal" && priority != "background") {
    throw field_error("priority", "must be \"normal\" or \"background\"");
  }
  return priority == "background";
}

void parse_common(const Json& body, const ParseContext& context, GenerationRequest& request) {
  refuse_unbuilt_fields(body);
  const Fields fields(body);
  request.model = fields.string("model").value_or("");
  parse_sampling(fields, context.vocabulary_size, request);
  parse_choices(fields, request);
  request.grammar = parse_structured_fields(body);
  request.thinking_budget = fields.integer("thinking_budget");
  if (request.thinking_budget.value_or(0) < 0) throw field_error("thinking_budget", "must not be negative");
  request.stream = fields.boolean("stream").value_or(false);
  if (const Json* options = fields.object("stream_options")) {
    request.include_usage = Fields(*options, "stream_options.").boolean("include_usage").value_or(false);
  }
  request.drafts = fields.boolean("draft").value_or(true);
  request.background = parse_background(fields);
  request.return_token_ids = fields.boolean("return_token_ids").value_or(false);
}

void parse_chat_logprobs(const Fields& fields, GenerationRequest& request) {
  const bool wanted = fields.boolean("logprobs").value_or(false);
  const std::optional<std::int64_t> top = fields.integer("top_logprobs");
  if (top && (*top < 0 || *top > kTopLogprobsMax)) throw field_error("top_logprobs", "must be between 0 and 20");
  if (top && *top > 0 && !wanted) throw field_error("top_logprobs", "needs \"logprobs\": true");
  if (!wanted) return;
  request.logprobs_top = static_cast<int>(top.value_or(0));
}

/// Refuses what is wrong before any work.
void check_messages(const Json& messages) {
  try {
    parse_messages(messages);
  } catch (const Error& error) {
    throw api_error_from(error).with_param("messages");
  }
}

GenerationRequest chat_from(const Json& body, const ParseContext& context) {
  GenerationRequest request;
  request.is_chat = true;
  request.id = "chatcmpl-" + random_hex(kIdDigits);
  const Json* messages = Fields(body).array("messages");
  if (messages == nullptr || messages->empty()) throw field_error("messages", "must be a nonempty list");
  parse_common(body, context, request);
  parse_max_tokens(Fields(body), request, false);
  parse_chat_logprobs(Fields(body), request);
  parse_template_fields(body, request);
  parse_tool_fields(body, request);
  if (request.tool_choice == ToolChoice::kRequired && request.grammar) {
    throw field_error("tool_choice", "a call can't be required together with " + request.grammar->field);
  }
  check_messages(*messages);
  request.messages = *messages;
  return request;
}

std::vector<std::int32_t> token_ids(const Json& list, std::int32_t vocabulary_size) {
  std::vector<std::int32_t> ids;
  ids.reserve(list.size());
  for (const Json& item : list) {
    const bool inside = item.is_number_integer() && (item.is_number_unsigned() || item.get<std::int64_t>() >= 0) &&
                        item.get<std::uint64_t>() < static_cast<std::uint64_t>(vocabulary_size);
    if (!inside) throw field_error("prompt", fmt::format("every id must be an integer below {}", vocabulary_size));
    ids.push_back(item.get<std::int32_t>());
  }
  return ids;
}

void parse_prompt(const Json& body, const ParseContext& context, GenerationRequest& request) {
  const Json* prompt = Fields(body).find("prompt");
  if (prompt == nullptr) throw field_error("prompt", "is required: a string or a list of token ids");
  // SDKs and evaluation harnesses wrap the one prompt in a list.
  if (prompt->is_array() && prompt->size() == 1 && (prompt->front().is_string() || prompt->front().is_array())) {
    prompt = &prompt->front();
  }
  if (prompt->is_string()) {
    request.prompt_text = prompt->get<std::string>();
  } else if (prompt->is_array() && !prompt->empty() && prompt->front().is_number()) {
    request.prompt_tokens = token_ids(*prompt, context.vocabulary_size);
    request.prompt_is_tokens = true;
  } else if (prompt->is_array() && prompt->size() > 1 && (prompt->front().is_string() || prompt->front().is_array())) {
    throw field_error("prompt", "one prompt for each request; send the others as requests of their own");
  } else {
    throw field_error("prompt", "must be a string or a nonempty list of token ids");
  }
}

void parse_completion_logprobs(const Fields& fields, GenerationRequest& request) {
  const Json* value = fields.find("logprobs");
  if (value == nullptr) return;
  const std::optional<std::int64_t> top = fields.integer("logprobs");
  if (*top < 0 || *top > kTopLogprobsMax) throw field_error("logprobs", "must be between 0 and 20");
  request.logprobs_top = static_cast<int>(*top);
}

/// Checks the switches; what else is in the object goes to the template as it is.
void parse_kwargs(const Json& kwargs, GenerationRequest& request) {
  const Fields fields(kwargs, "chat_template_kwargs.");
  fields.boolean("enable_thinking");
  fields.boolean("clear_thinking");
  if (const Json* thinking = fields.find("thinking")) {
    std::string type;
    if (thinking->is_object()) type = Fields(*thinking, "chat_template_kwargs.thinking.").string("type").value_or("");
    if (!thinking->is_boolean() && type != "enabled" && type != "disabled") {
      throw field_error("chat_template_kwargs.thinking",
                        "must be a boolean or {\"type\": \"enabled\" or \"disabled\"}");
    }
  }
  if (!request.reasoning_effort) request.reasoning_effort = fields.string("reasoning_effort");
  request.template_kwargs = kwargs;
}

}  // namespace

void parse_template_fields(const Json& body, GenerationRequest& request) {
  const Fields fields(body);
  request.reasoning_effort = fields.string("reasoning_effort");
  if (const Json* kwargs = fields.object("chat_template_kwargs")) parse_kwargs(*kwargs, request);
  if (request.reasoning_effort && !is_effort_name(*request.reasoning_effort)) {
    throw field_error("reasoning_effort", "must be none, minimal, low, medium, high, xhigh or max");
  }
}

GenerationRequest parse_chat_request(std::string_view body, const ParseContext& context) {
  return chat_from(parse_json_body(body), context);
}

GenerationRequest parse_completion_request(std::string_view body, const ParseContext& context) {
  const Json json = parse_json_body(body);
  const Json* messages = Fields(json).find("messages");
  if (messages != nullptr && messages->is_array() && !messages->empty()) return chat_from(json, context);
  GenerationRequest request;
  request.id = "cmpl-" + random_hex(kIdDigits);
  refuse_tool_fields(json);
  parse_common(json, context, request);
  parse_max_tokens(Fields(json), request, true);
  parse_prompt(json, context, request);
  request.add_special_tokens = Fields(json).boolean("add_special_tokens").value_or(true);
  request.echo = Fields(json).boolean("echo").value_or(false);
  parse_completion_logprobs(Fields(json), request);
  return request;
}

}  // namespace tensorfold
