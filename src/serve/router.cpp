// The route table; see router.h.
#include "serve/router.h"

#include "serve/http_message.h"

namespace tensorfold {
namespace {

enum class PathMatch {
  kWhole,
  kEnd,     // any path that ends in it, so that "/openai/v1/chat/completions" works
  kInside,  // any path that goes on after it: an id, which may hold slashes
};

struct Route {
  std::string_view method;
  std::string_view path;
  PathMatch match;
  RouteTarget target;
  bool gated;
};

constexpr std::string_view kModelsPath = "/models/";

// First match wins: "/chat/completions" stands before "/completions".
constexpr Route kRoutes[] = {
    {"GET", "/health", PathMatch::kWhole, RouteTarget::kHealth, false},
    {"GET", "/", PathMatch::kWhole, RouteTarget::kHealth, false},
    {"GET", kModelsPath, PathMatch::kInside, RouteTarget::kModel, true},
    {"GET", "/models", PathMatch::kEnd, RouteTarget::kModels, true},
    {"POST", "/chat/completions", PathMatch::kEnd, RouteTarget::kChatCompletions, true},
    {"POST", "/completions", PathMatch::kEnd, RouteTarget::kCompletions, true},
    {"POST", "/tokenize", PathMatch::kWhole, RouteTarget::kTokenize, true},
    {"POST", "/v1/tokenize", PathMatch::kWhole, RouteTarget::kTokenize, true},
    {"POST", "/detokenize", PathMatch::kWhole, RouteTarget::kDetokenize, true},
    {"POST", "/v1/detokenize", PathMatch::kWhole, RouteTarget::kDetokenize, true},
};

bool matches(const Route& entry, std::string_view path) {
  switch (entry.match) {
    case PathMatch::kWhole:
      return path == entry.path;
    case PathMatch::kEnd:
      return path.ends_with(entry.path);
    case PathMatch::kInside:
      return path.find(entry.path) != std::string_view::npos;
  }
  return false;
}

/// Paths under which nothing is answered without a key, routes or not.
bool is_gated_space(std::string_view path) {
  return path == "/v1" || path.substr(0, 4) == "/v1/";
}

}  // namespace

RouteMatch route(std::string_view method, std::string_view path) {
  if (method == "HEAD") method = "GET";
  for (const Route& entry : kRoutes) {
    if (entry.method != method) continue;
    if (matches(entry, path)) return {entry.target, entry.gated};
  }
  return {RouteTarget::kNone, is_gated_space(path)};
}

std::string model_id_of(std::string_view path) {
  const std::size_t found = path.find(kModelsPath);
  if (found == std::string_view::npos) return "";
  const std::string_view text = path.substr(found + kModelsPath.size());
  std::string id;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool escape =
        text[i] == '%' && i + 2 < text.size() && hex_digit(text[i + 1]) >= 0 && hex_digit(text[i + 2]) >= 0;
    id.push_back(escape ? static_cast<char>(hex_digit(text[i + 1]) * 16 + hex_digit(text[i + 2])) : text[i]);
    if (escape) i += 2;
  }
  return id;
}

bool is_served_method(std::string_view method) {
  return method == "GET" || method == "HEAD" || method == "POST" || method == "DELETE";
}

}  // namespace tensorfold
