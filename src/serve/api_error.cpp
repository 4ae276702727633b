// The OpenAI error shape; see api_error.h.
#include "serve/api_error.h"

#include <nlohmann/json.hpp>

namespace tensorfold {
namespace {

std::string dump(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

HttpResponse ApiError::response() const {
  nlohmann::ordered_json error = {{"message", what()}, {"type", type_}};
  if (param_) error["param"] = *param_;
  if (code_) error["code"] = *code_;
  HttpResponse response;
  response.status = status_;
  response.body = dump({{"error", error}});
  response.close = close_;
  if (retry_after_seconds_) response.headers.emplace_back("Retry-After", std::to_string(*retry_after_seconds_));
  return response;
}

ApiError field_error(const std::string& field, const std::string& message) {
  return ApiError(400, "invalid_request_error", fmt::format("'{}': {}", field, message)).with_param(field);
}

HttpResponse unauthorized_response() {
  HttpResponse response;
  response.status = 401;
  response.body = dump({{"error",
                         {{"message", "no valid API key: send 'Authorization: Bearer KEY' or 'x-api-key: KEY'"},
                          {"type", "invalid_request_error"},
                          {"param", nullptr},
                          {"code", "invalid_api_key"}}}});
  response.headers.emplace_back("WWW-Authenticate", "Bearer");
  response.close = true;
  return response;
}

HttpResponse host_refused_response(std::string_view host) {
  HttpResponse response;
  response.status = 403;
  response.body = dump({{"error",
                         {{"message", fmt::format("this server does not answer to the host '{}': start it with "
                                                  "--allowed-host NAME to allow one",
                                                  host.substr(0, 255))},
                          {"type", "invalid_request_error"},
                          {"param", nullptr},
                          {"code", "host_not_allowed"}}}});
  response.close = true;
  return response;
}

HttpResponse unknown_path_response(const HttpRequest& request) {
  HttpResponse response;
  response.status = 404;
  response.body = dump({{"error",
                         {{"message", fmt::format("no route for {} {}", request.method, request.path)},
                          {"type", "invalid_request_error"},
                          {"param", nullptr},
                          {"code", "unknown_url"}}}});
  return response;
}

ApiError api_error_from(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported:
      return ApiError(400, "invalid_request_error", error.what());
    case ErrorCode::kResourceExhausted:
      return ApiError(503, "server_error", error.what()).with_retry_after(5);
    default:
      return ApiError(500, "server_error", error.what());
  }
}

std::string stream_error_json(const std::string& message) {
  return dump({{"error", {{"message", message}, {"type", "server_error"}}}});
}

}  // namespace tensorfold
