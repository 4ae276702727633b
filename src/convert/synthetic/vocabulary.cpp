// See vocabulary.h.
#include "convert/synthetic/vocabulary.h"

#include <utility>

#include "base/error.h"

namespace tensorfold {
namespace {

constexpr std::int32_t kNormal = 1, kControl = 3;
constexpr int kBytes = 256;

std::string utf8(int code_point) {
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xc0 | (code_point >> 6)), static_cast<char>(0x80 | (code_point & 0x3f))};
}

/// Byte-level BPE spells every byte as a printable character: its own where it is one, else one from U+0100 on.
std::vector<std::string> byte_characters() {
  std::vector<std::string> characters;
  int next = 0x100;
  for (int byte = 0; byte < kBytes; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    characters.push_back(utf8(printable ? byte : next++));
  }
  return characters;
}

}  // namespace

SyntheticVocabulary make_vocabulary(std::int32_t size, std::int32_t bos_token, std::int32_t eos_token,
                                    std::string pre_tokenizer) {
  if (size < kBytes + 3 || bos_token >= size || eos_token < 0 || eos_token >= size || bos_token == eos_token) {
    fail(ErrorCode::kInvalidArgument, "a vocabulary of {} tokens with the special ones {} and {} can't be made up",
         size, bos_token, eos_token);
  }
  SyntheticVocabulary vocabulary;
  vocabulary.bos_token = bos_token;
  vocabulary.eos_token = eos_token;
  vocabulary.pre_tokenizer = std::move(pre_tokenizer);
  std::vector<std::string> wanted = byte_characters();
  const std::string space = wanted[' '], letter = "t";
  wanted.push_back(space + letter);
  vocabulary.merges.push_back(space + " " + letter);
  std::size_t used = 0;
  for (std::int32_t id = 0; id < size; ++id) {
    const bool special = id == bos_token || id == eos_token;
    vocabulary.types.push_back(special ? kControl : kNormal);
    if (special) {
      vocabulary.tokens.push_back(id == bos_token ? "<|begin|>" : "<|end|>");
    } else if (used < wanted.size()) {
      vocabulary.tokens.push_back(wanted[used++]);
    } else {
      vocabulary.tokens.push_back(fmt::format("[{}]", id));
    }
  }
  return vocabulary;
}

}  // namespace tensorfold
