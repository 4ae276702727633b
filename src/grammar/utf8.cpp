// See utf8.h.
#include "grammar/utf8.h"

#include <optional>

#include "base/error.h"

namespace tensorfold {
namespace {

struct Decoded {
  std::uint32_t character = 0;
  std::size_t length = 0;
};

/// The character that begins `text`; none for an invalid, overlong or cut sequence.
std::optional<Decoded> decode_one(std::string_view text) {
  const auto byte = [text](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t lead = byte(0);
  if (lead < 0x80) return Decoded{lead, 1};
  if (lead < 0xc2 || lead > 0xf4) return std::nullopt;
  const std::size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (text.size() < length) return std::nullopt;
  std::uint32_t character = lead & (0xffu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return std::nullopt;
    character = character << 6 | (byte(i) & 0x3fu);
  }
  static constexpr std::uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = character >= 0xd800 && character <= 0xdfff;
  if (character < kSmallest[length] || character > 0x10ffff || surrogate) return std::nullopt;
  return Decoded{character, length};
}

}  // namespace

bool is_valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::optional<Decoded> decoded = decode_one(text);
    if (!decoded) return false;
    text.remove_prefix(decoded->length);
  }
  return true;
}

std::vector<std::uint32_t> decode_utf8(std::string_view text) {
  std::vector<std::uint32_t> characters;
  while (!text.empty()) {
    const std::optional<Decoded> decoded = decode_one(text);
    if (!decoded) fail(ErrorCode::kInvalidArgument, "the text isn't valid UTF-8");
    characters.push_back(decoded->character);
    text.remove_prefix(decoded->length);
  }
  return characters;
}

void append_utf8(std::uint32_t character, std::string& out) {
  const auto put = [&out](std::uint32_t byte) { out += static_cast<char>(byte); };
  if (character < 0x80) {
    put(character);
  } else if (character < 0x800) {
    put(0xc0 | character >> 6);
    put(0x80 | (character & 0x3f));
  } else if (character < 0x10000) {
    put(0xe0 | character >> 12);
    put(0x80 | (character >> 6 & 0x3f));
    put(0x80 | (character & 0x3f));
  } else {
    put(0xf0 | character >> 18);
    put(0x80 | (character >> 12 & 0x3f));
    put(0x80 | (character >> 6 & 0x3f));
    put(0x80 | (character & 0x3f));
  }
}

}  // namespace tensorfold
