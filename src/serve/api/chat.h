// POST .../chat/completions: the reply's wire format, whole and streamed (api.md 3.5).
#pragma once

#include <memory>

#include "serve/reply_format.h"

namespace tensorfold {

std::unique_ptr<ReplyFormat> make_chat_format();

}  // namespace tensorfold
