// The one exception type of the project. A boundary throws it when the operation asked for can't be done; the message
// says what is wrong and what to do next, because it reaches a terminal or an HTTP client unchanged. Programmer errors
// are TF_ASSERT, which stops the process: an engine that goes on after a broken invariant could emit a wrong token.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

#include "base/assert.h"

namespace tensorfold {

enum class ErrorCode {
  kInvalidArgument,    // a flag or a request field; HTTP 400, exit 2
  kInvalidCheckpoint,  // a damaged, inconsistent or unsupported checkpoint; exit 1
  kNotFound,           // a file, model or route that isn't there
  kUnsupported,        // understood, but not by this build or machine
  kResourceExhausted,  // a named limit or memory; HTTP 429/503
  kCancelled,
  kInternal,
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

template <typename... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace tensorfold
