// The route table: which path is served by what, and who may call it. One table, so that no route can exist without an
// auth class (api.md 3.2, 5.1).
#pragma once

#include <string>
#include <string_view>

namespace tensorfold {

enum class RouteTarget {
  kNone,
  kModels,
  kModel,
  kHealth,
  kChatCompletions,
  kCompletions,
  kTokenize,
  kDetokenize,
};

struct RouteMatch {
  RouteTarget target = RouteTarget::kNone;
  bool gated = false;  // needs a key when keys are configured
};

/// `path` is normalised (HttpRequest::path); HEAD is routed like GET.
RouteMatch route(std::string_view method, std::string_view path);

/// The id in a path that goes to kModel, percent-decoded (clients escape the slash of OWNER/NAME, or don't).
std::string model_id_of(std::string_view path);

/// Methods that are served at all; others are 501.
bool is_served_method(std::string_view method);

}  // namespace tensorfold
