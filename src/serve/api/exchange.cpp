// Opens a generating exchange: body -> neutral request -> open stream, with the format that will write it.
#include "serve/api/chat.h"
#include "serve/api/completions.h"
#include "serve/api/request_parser.h"
#include "serve/handlers.h"

namespace tensorfold {

Exchange open_exchange(RouteTarget target, std::shared_ptr<const ServedModel> model, const HttpRequest& http,
                       std::chrono::steady_clock::time_point received, std::function<void()> notify) {
  const ParseContext context{model->engine->facts().model.vocabulary_size};
  GenerationRequest request = target == RouteTarget::kChatCompletions ? parse_chat_request(http.body, context)
                                                                      : parse_completion_request(http.body, context);
  request.model = model->echoed_name(request.model);
  request.owner = http.key_scope;
  request.received = received;
  Exchange exchange;
  exchange.format = request.is_chat ? make_chat_format() : make_completion_format();
  exchange.generation = Generation::open(std::move(model), std::move(request), std::move(notify));
  return exchange;
}

}  // namespace tensorfold
