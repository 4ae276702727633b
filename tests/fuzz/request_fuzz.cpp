// Bytes of a request body -> both text routes' parsers. Anything may be refused; nothing may crash, hang or throw another
// type than the API's own error.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "serve/api/request_parser.h"
#include "serve/api_error.h"
#include "serve/http_parser.h"

namespace {

void parse(tensorfold::GenerationRequest (*parser)(std::string_view, const tensorfold::ParseContext&),
           std::string_view body) {
  try {
    parser(body, tensorfold::ParseContext{1000});
  } catch (const tensorfold::ApiError&) {
  }
}

/// The same bytes as a connection's: framing must give one answer however they are cut.
void frame(std::string_view bytes, std::size_t piece) {
  tensorfold::HttpRequestParser parser(1u << 20);
  std::string input;
  bool have_head = false;
  try {
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      input += bytes.substr(at, piece);
      have_head = have_head || parser.parse_head(input);
      if (have_head && parser.parse_body(input)) return;
    }
  } catch (const tensorfold::FramingError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  parse(tensorfold::parse_chat_request, body);
  parse(tensorfold::parse_completion_request, body);
  if (size > 0) {
    frame(body, size);
    frame(body, 7);
  }
  return 0;
}
