// What a client is told when a request can't be served: one exception type that carries an HTTP status and the fields
// of the OpenAI error shape (api.md 3.3), and its JSON. Thrown anywhere between the body and the first response byte.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "base/error.h"
#include "serve/http_message.h"

namespace tensorfold {

class ApiError : public std::runtime_error {
 public:
  ApiError(int status, std::string type, const std::string& message)
      : std::runtime_error(message), status_(status), type_(std::move(type)) {}

  int status() const { return status_; }
  const std::string& type() const { return type_; }
  ApiError& with_param(std::string param) {
    param_ = std::move(param);
    return *this;
  }
  ApiError& with_code(std::string code) {
    code_ = std::move(code);
    return *this;
  }
  ApiError& with_retry_after(int seconds) {
    retry_after_seconds_ = seconds;
    return *this;
  }
  ApiError& with_close() {
    close_ = true;
    return *this;
  }
  HttpResponse response() const;

 private:
  int status_;
  std::string type_;
  std::optional<std::string> param_;
  std::optional<std::string> code_;
  std::optional<int> retry_after_seconds_;
  bool close_ = false;
};

/// 400 invalid_request_error that names a field.
ApiError field_error(const std::string& field, const std::string& message);
/// 401 with the shape of api.md 3.3; closes.
HttpResponse unauthorized_response();
/// 403 for a Host that this server doesn't answer to; closes.
HttpResponse host_refused_response(std::string_view host);
/// 404 with a message that names the path.
HttpResponse unknown_path_response(const HttpRequest& request);
/// A project error as the client should see it.
ApiError api_error_from(const Error& error);
/// {"error": {"message", "type": "server_error"}} for a stream that has already begun.
std::string stream_error_json(const std::string& message);

}  // namespace tensorfold
