// POST .../completions: the reply's wire format, whole and streamed, with echo and log-probabilities as evaluation
// harnesses read them (api.md 3.6).
#pragma once

#include <memory>

#include "serve/reply_format.h"

namespace tensorfold {

std::unique_ptr<ReplyFormat> make_completion_format();

}  // namespace tensorfold
