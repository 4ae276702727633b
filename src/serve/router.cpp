// The route table; see router.h.
#include "serve/router.h"

namespace tensorfold {
namespace {

struct Route {
  std::string_view method;
  std::string_view path;
  bool suffix;  // any path that ends in `path`, so that "/openai/v1/chat/completions" works
  RouteTarget target;
  bool gated;
};

// First match wins: "/chat/completions" stands before "/completions".
constexpr Route kRoutes[] = {
    {"GET", "/health", false, RouteTarget::kHealth, false},
    {"GET", "/", false, RouteTarget::kHealth, false},
    {"GET", "/models", true, RouteTarget::kModels, true},
    {"POST", "/chat/completions", true, RouteTarget::kChatCompletions, true},
    {"POST", "/completions", true, RouteTarget::kCompletions, true},
    {"POST", "/tokenize", false, RouteTarget::kTokenize, true},
    {"POST", "/v1/tokenize", false, RouteTarget::kTokenize, true},
    {"POST", "/detokenize", false, RouteTarget::kDetokenize, true},
    {"POST", "/v1/detokenize", false, RouteTarget::kDetokenize, true},
};

/// Paths under which nothing is answered without a key, routes or not.
bool is_gated_space(std::string_view path) {
  return path == "/v1" || path.substr(0, 4) == "/v1/";
}

}  // namespace

RouteMatch route(std::string_view method, std::string_view path) {
  if (method == "HEAD") method = "GET";
  for (const Route& entry : kRoutes) {
    if (entry.method != method) continue;
    const bool matches =
        entry.suffix ? path.size() >= entry.path.size() && path.substr(path.size() - entry.path.size()) == entry.path
                     : path == entry.path;
    if (matches) return {entry.target, entry.gated};
  }
  return {RouteTarget::kNone, is_gated_space(path)};
}

bool is_served_method(std::string_view method) {
  return method == "GET" || method == "HEAD" || method == "POST" || method == "DELETE";
}

}  // namespace tensorfold
