// Compiling a template with limits of one's own, for the fuzzer and for tests of the limits themselves.
#pragma once

#include <memory>
#include <string_view>

#include "text/chat_template.h"
#include "text/jinja_runtime.h"

namespace tensorfold {

std::shared_ptr<const ChatTemplate> compile_chat_template(std::string_view source, jinja::RenderLimits limits);

}  // namespace tensorfold
