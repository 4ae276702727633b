// UTF-8 for grammar sources: checked decoding and encoding of single characters. Small and local, because this room
// rests on base alone and text/ is its sibling.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tensorfold {

bool is_valid_utf8(std::string_view text);
/// The characters of valid UTF-8. Throws Error(kInvalidArgument) when it isn't.
std::vector<std::uint32_t> decode_utf8(std::string_view text);
void append_utf8(std::uint32_t character, std::string& out);

}  // namespace tensorfold
