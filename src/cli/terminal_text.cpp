// See terminal_text.h.
#include "cli/terminal_text.h"

namespace tensorfold::cli {
namespace {

constexpr unsigned char kDelete = 0x7f;
constexpr unsigned char kC1Lead = 0xc2;  // U+0080 to U+009F are C2 80 to C2 9F in UTF-8
constexpr unsigned char kC1Last = 0x9f;

}  // namespace

std::string without_controls(std::string_view text) {
  std::string safe;
  safe.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const unsigned char next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    if (byte == kC1Lead && next >= 0x80 && next <= kC1Last) {
      ++i;
    } else if ((byte >= ' ' && byte != kDelete) || byte == '\n' || byte == '\t') {
      safe.push_back(text[i]);
    }
  }
  return safe;
}

}  // namespace tensorfold::cli
