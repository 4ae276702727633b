// Strict HTTP/1.x request framing; see http_parser.h for why it is our own. Limits: api.md 3.1.
#include "serve/http_parser.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/limits.h"

namespace tensorfold {
namespace {

constexpr int kBadRequest = 400;
constexpr int kBlankLinesBeforeRequestMax = 4;

bool is_token_char(unsigned char c) {
  if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')) return true;
  return std::string_view("!#$%&'*+-.^_`|~").find(static_cast<char>(c)) != std::string_view::npos;
}

bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return is_token_char(c); });
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

std::uint64_t parse_length(std::string_view text) {
  if (text.empty() || text.size() > 18) throw FramingError(kBadRequest, "Content-Length is not a plausible number");
  std::uint64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') throw FramingError(kBadRequest, "Content-Length holds something other than digits");
    value = value * 10 + static_cast<std::uint64_t>(c - '0');
  }
  return value;
}

bool list_names(std::string_view list, std::string_view name) {
  while (!list.empty()) {
    const std::size_t comma = list.find(',');
    if (equals_ignoring_case(trim(list.substr(0, comma)), name)) return true;
    if (comma == std::string_view::npos) break;
    list.remove_prefix(comma + 1);
  }
  return false;
}

}  // namespace

bool HttpRequestParser::parse_head(std::string& input) {
  std::size_t position = 0;
  bool complete = false;
  while (!complete) {
    const std::size_t end = input.find('\n', position + scanned_);
    const std::size_t length = (end == std::string::npos ? input.size() : end) - position;
    if (length > 0 || end != std::string::npos) started_ = true;
    if (length > limits::kHttpLineBytesMax + 1) {
      if (!have_request_line_) throw FramingError(414, "the request line is longer than 65536 bytes");
      throw FramingError(431, "a header line is longer than 65536 bytes");
    }
    if (end == std::string::npos) {
      scanned_ = length;
      break;
    }
    scanned_ = 0;
    if (end == position || input[end - 1] != '\r') throw FramingError(kBadRequest, "a line ends without CR LF");
    const std::string_view line(input.data() + position, length - 1);
    position = end + 1;
    if (!have_request_line_) {
      if (line.empty()) {  // blank lines before a request are skipped, as RFC 9112 asks
        if (++blank_lines_ > kBlankLinesBeforeRequestMax) throw FramingError(kBadRequest, "no request line");
        started_ = false;
        continue;
      }
      take_request_line(line);
      have_request_line_ = true;
    } else if (line.empty()) {
      complete = true;
    } else {
      take_header_line(line);
    }
  }
  input.erase(0, position);
  if (complete) finish_head();
  return complete;
}

void HttpRequestParser::take_request_line(std::string_view line) {
  const std::size_t first = line.find(' ');
  const std::size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last)
    throw FramingError(kBadRequest, "the request line is malformed");
  const std::string_view method = line.substr(0, first);
  const std::string_view target = line.substr(first + 1, last - first - 1);
  const std::string_view version = line.substr(last + 1);
  const bool target_is_plain =
      !target.empty() && std::all_of(target.begin(), target.end(), [](char c) { return c > 0x20 && c < 0x7f; });
  if (!is_token(method) || !target_is_plain) throw FramingError(kBadRequest, "the request line is malformed");
  const bool shaped = version.size() == 8 && version.substr(0, 5) == "HTTP/" && version[6] == '.' &&
                      version[5] >= '0' && version[5] <= '9' && version[7] >= '0' && version[7] <= '9';
  if (!shaped) throw FramingError(kBadRequest, "the request line names no HTTP version");
  if (version[5] >= '2') throw FramingError(505, "only HTTP/1.1 and HTTP/1.0 are served");
  if (version[5] == '0') throw FramingError(kBadRequest, "HTTP/0.x is not served");
  request_.method = method;
  request_.target = target;
  request_.minor_version = version[7] == '0' ? 0 : 1;
  split_target(request_);
}

void HttpRequestParser::take_header_line(std::string_view line) {
  if (request_.headers.size() >= limits::kHttpHeaderCountMax) throw FramingError(431, "more than 100 header lines");
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos || !is_token(line.substr(0, colon))) {
    throw FramingError(kBadRequest, "a header line is malformed");
  }
  const std::string_view value = trim(line.substr(colon + 1));
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\t') || byte == 0x7f)
      throw FramingError(kBadRequest, "a header value holds control characters");
  }
  request_.headers.emplace_back(line.substr(0, colon), value);
}

void HttpRequestParser::finish_head() {
  keep_alive_ = request_.minor_version >= 1;
  int hosts = 0;
  for (const auto& [name, value] : request_.headers) {
    if (equals_ignoring_case(name, "host")) ++hosts;
    if (equals_ignoring_case(name, "connection")) {
      if (list_names(value, "close")) {
        keep_alive_ = false;
        break;
      }
      if (list_names(value, "keep-alive")) keep_alive_ = true;
    }
  }
  if (hosts > 1) throw FramingError(kBadRequest, "more than one Host header");
  frame_body();
  expects_continue_ =
      request_.minor_version >= 1 && equals_ignoring_case(request_.single_header("expect"), "100-continue");
}

void HttpRequestParser::frame_body() {
  bool has_length = false;
  int codings = 0;
  for (const auto& [name, value] : request_.headers) {
    if (equals_ignoring_case(name, "content-length")) {
      const std::uint64_t length = parse_length(value);
      if (has_length && length != content_length_)
        throw FramingError(kBadRequest, "conflicting Content-Length headers");
      content_length_ = length;
      has_length = true;
    } else if (equals_ignoring_case(name, "transfer-encoding")) {
      ++codings;
      chunked_ = equals_ignoring_case(value, "chunked");
    }
  }
  if (codings > 0) {
    if (has_length) throw FramingError(kBadRequest, "both Content-Length and Transfer-Encoding are given");
    if (codings > 1 || !chunked_) throw FramingError(kBadRequest, "the only Transfer-Encoding served is 'chunked'");
    if (request_.minor_version == 0) throw FramingError(kBadRequest, "HTTP/1.0 has no Transfer-Encoding");
  }
  if (content_length_ > body_bytes_max_) {
    throw FramingError(413, fmt::format("the request body is larger than {} bytes", body_bytes_max_));
  }
}

bool HttpRequestParser::parse_body(std::string& input) {
  if (chunked_) return parse_chunked(input);
  const std::size_t wanted = static_cast<std::size_t>(content_length_) - request_.body.size();
  const std::size_t taken = std::min(wanted, input.size());
  request_.body.append(input, 0, taken);
  input.erase(0, taken);
  return taken == wanted;
}

bool HttpRequestParser::take_line(std::string& input, std::size_t& position, std::string_view& line,
                                  std::size_t line_bytes_max) const {
  const std::size_t end = input.find('\n', position);
  const std::size_t length = (end == std::string::npos ? input.size() : end) - position;
  if (length > line_bytes_max + 1) throw FramingError(kBadRequest, "chunk extensions or trailers over 64 KiB");
  if (end == std::string::npos) return false;
  if (end == position || input[end - 1] != '\r') throw FramingError(kBadRequest, "a chunk line ends without CR LF");
  line = std::string_view(input.data() + position, length - 1);
  position = end + 1;
  return true;
}

bool HttpRequestParser::take_chunk_size(std::string_view line) {
  std::size_t digits = 0;
  std::uint64_t size = 0;
  while (digits < line.size() && hex_digit(line[digits]) >= 0) {
    if (digits >= 15) throw FramingError(kBadRequest, "bad chunk size");
    size = size * 16 + static_cast<std::uint64_t>(hex_digit(line[digits]));
    ++digits;
  }
  if (digits == 0 || (digits < line.size() && line[digits] != ';')) throw FramingError(kBadRequest, "bad chunk size");
  extension_bytes_ += line.size() - digits;
  if (extension_bytes_ > limits::kHttpChunkExtensionBytesMax) {
    throw FramingError(kBadRequest, "chunk extensions over 64 KiB");
  }
  if (size > body_bytes_max_ - request_.body.size()) {
    throw FramingError(413, fmt::format("the request body is larger than {} bytes", body_bytes_max_));
  }
  chunk_left_ = size;
  return size != 0;
}

bool HttpRequestParser::parse_chunked(std::string& input) {
  std::size_t position = 0;
  bool more = true;
  while (more && chunk_state_ != ChunkState::kDone) {
    std::string_view line;
    switch (chunk_state_) {
      case ChunkState::kSize:
        more = take_line(input, position, line, limits::kHttpChunkExtensionBytesMax + 16);
        if (more) chunk_state_ = take_chunk_size(line) ? ChunkState::kData : ChunkState::kTrailers;
        break;
      case ChunkState::kData: {
        const std::size_t taken = std::min<std::size_t>(chunk_left_, input.size() - position);
        request_.body.append(input, position, taken);
        position += taken;
        chunk_left_ -= taken;
        more = chunk_left_ == 0;
        if (more) chunk_state_ = ChunkState::kDataEnd;
        break;
      }
      case ChunkState::kDataEnd: {
        const std::string_view end = std::string_view(input).substr(position, 2);
        if (end != std::string_view("\r\n").substr(0, end.size())) {
          throw FramingError(kBadRequest, "a chunk is longer than its size says");
        }
        more = end.size() == 2;
        if (more) {
          position += 2;
          chunk_state_ = ChunkState::kSize;
        }
        break;
      }
      case ChunkState::kTrailers:
        more = take_line(input, position, line, limits::kHttpChunkExtensionBytesMax);
        if (!more) break;
        trailer_bytes_ += line.size();
        if (trailer_bytes_ > limits::kHttpChunkExtensionBytesMax)
          throw FramingError(kBadRequest, "trailers over 64 KiB");
        if (line.empty()) chunk_state_ = ChunkState::kDone;
        break;
      case ChunkState::kDone:
        break;
    }
  }
  input.erase(0, position);
  return chunk_state_ == ChunkState::kDone;
}

}  // namespace tensorfold
