// Helpers over plain HTTP messages; see http_message.h.
#include "serve/http_message.h"

#include <fmt/format.h>

#include <cstdint>
#include <ctime>

namespace tensorfold {
namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

}  // namespace

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (lower(a[i]) != lower(b[i])) return false;
  }
  return true;
}

std::string_view HttpRequest::single_header(std::string_view name) const {
  const std::string* found = nullptr;
  for (const auto& [key, value] : headers) {
    if (!equals_ignoring_case(key, name)) continue;
    if (found != nullptr) return {};
    found = &value;
  }
  return found == nullptr ? std::string_view{} : std::string_view{*found};
}

bool HttpRequest::has_header(std::string_view name) const {
  for (const auto& header : headers) {
    if (equals_ignoring_case(header.first, name)) return true;
  }
  return false;
}

std::string_view http_reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Status";
  }
}

std::string http_date(std::int64_t unix_seconds) {
  static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                            "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t time = static_cast<std::time_t>(unix_seconds);
  std::tm utc{};
  gmtime_r(&time, &utc);
  return fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays[utc.tm_wday], utc.tm_mday, kMonths[utc.tm_mon],
                     utc.tm_year + 1900, utc.tm_hour, utc.tm_min, utc.tm_sec);
}

void split_target(HttpRequest& request) {
  std::string_view target = request.target;
  // Absolute form ("GET http://host/path"): servers must accept it.
  for (const std::string_view scheme : {std::string_view("http://"), std::string_view("https://")}) {
    if (target.size() >= scheme.size() && equals_ignoring_case(target.substr(0, scheme.size()), scheme)) {
      target.remove_prefix(scheme.size());
      const std::size_t slash = target.find_first_of("/?");
      target = slash == std::string_view::npos ? std::string_view{} : target.substr(slash);
      break;
    }
  }
  target = target.substr(0, target.find('#'));
  const std::size_t question = target.find('?');
  request.query = question == std::string_view::npos ? std::string{} : std::string(target.substr(question + 1));
  std::string_view path = target.substr(0, question);
  while (path.size() >= 2 && path[0] == '/' && path[1] == '/') path.remove_prefix(1);
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  request.path = path.empty() ? "/" : std::string(path);
}

}  // namespace tensorfold
