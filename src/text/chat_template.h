// Chat templates: a Jinja interpreter for what real templates use, with limits on steps, depth and output, that renders
// into segments. Every string that comes from the caller's data is tainted and stays a segment of its own (through
// concatenation, filters, slicing, tojson ...), so that message text is never parsed for control tokens. A compiled
// template is immutable and may render on many threads at once.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace tensorfold {

class ChatTemplate {
 public:
  /// Throws Error(kInvalidCheckpoint) with line and construct for what isn't Jinja or isn't supported.
  static std::shared_ptr<const ChatTemplate> compile(std::string_view source);
  virtual ~ChatTemplate() = default;

  /// Renders with the given variables (messages, tools, add_generation_prompt, bos_token, ...). Object keys keep their
  /// order (ordered_json). Throws Error(kInvalidArgument) with the template's own message for raise_exception and for
  /// errors in the data, Error(kResourceExhausted) when a limit is met. `now_unix_seconds` feeds strftime_now.
  virtual std::vector<PromptSegment> render(const nlohmann::ordered_json& variables,
                                            std::int64_t now_unix_seconds) const = 0;
  virtual const std::string& source() const = 0;
};

}  // namespace tensorfold
