// The rules that a request puts on its reply's path (stop strings, structured output), made into the one rule that a
// stream carries.
#pragma once

#include <memory>

#include "engine/path_rule.h"
#include "serve/chat_prompt.h"
#include "serve/generation_request.h"
#include "serve/served_model.h"

namespace tensorfold {

/// Null when nothing is asked for. Blocking (compiles a grammar): on a worker. Throws ApiError(400) that names the
/// field.
std::unique_ptr<PathRule> make_reply_rule(const ServedModel& model, const GenerationRequest& request,
                                          const PromptTokens& prompt);

}  // namespace tensorfold
