// What routes do, without sockets: the connection calls these on a worker thread.
#pragma once

#include <functional>
#include <memory>

#include "serve/http_message.h"
#include "serve/reply_format.h"
#include "serve/router.h"
#include "serve/served_model.h"

namespace tensorfold {

/// Facts about the server that some replies state.
struct ServerSnapshot {
  bool keys_required = false;
  bool draining = false;  // new generation is refused
};

/// GET /health; `model` is null while loading.
HttpResponse handle_health(const ServedModel* model, const ServerSnapshot& server);
HttpResponse handle_models(const ServedModel& model);
/// Throws ApiError(404) for an id that isn't a name of the model.
HttpResponse handle_model(const ServedModel& model, const std::string& id);
HttpResponse handle_tokenize(const ServedModel& model, const HttpRequest& request);
HttpResponse handle_detokenize(const ServedModel& model, const HttpRequest& request);

/// Parses a generating request and opens its stream. Throws ApiError or Error.
Exchange open_exchange(RouteTarget target, std::shared_ptr<const ServedModel> model, const HttpRequest& request,
                       std::chrono::steady_clock::time_point received, std::function<void()> notify);

}  // namespace tensorfold
