// Plain HTTP messages: what the connection hands to handlers and what they hand back. No socket types here, so that
// wire formats and handlers compile fast and can be tested without a network.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tensorfold {

struct HttpRequest {
  std::string method;
  std::string target;  // as sent
  std::string path;    // for routing: no query, no trailing '/', leading "//" collapsed
  std::string query;
  int minor_version = 1;
  std::vector<std::pair<std::string, std::string>> headers;  // names as sent
  std::string body;
  std::string peer;       // address:port, for the log
  std::string key_label;  // whose key authorised it; "-" when no keys are configured
  std::string key_scope = "-";  // the same for what is kept per key (api_keys.h)

  /// Value of a header (any case of the name). Empty when absent *or* when present more than once: a header that an
  /// intermediary may have read differently is not trusted.
  std::string_view single_header(std::string_view name) const;
  bool has_header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  bool close = false;
};

/// "OK", "Bad Request", ...
std::string_view http_reason(int status);

/// The date as RFC 9110 spells it.
std::string http_date(std::int64_t unix_seconds);

bool equals_ignoring_case(std::string_view a, std::string_view b);

/// -1: none.
int hex_digit(char c);

/// Fills path and query from target.
void split_target(HttpRequest& request);

}  // namespace tensorfold
