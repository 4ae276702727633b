// Any bytes as a source of structured output: the first byte chooses the kind (schema, pattern, EBNF, choice), the rest
// is the source. It compiles or fails with an Error, in bounded time; what compiles is walked for a few tokens, and the
// mask must hold exactly the tokens that the matcher takes.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "grammar/grammar.h"

namespace {

using tensorfold::GrammarCompiler;
using tensorfold::GrammarMatcher;
using tensorfold::GrammarSource;

constexpr int kWalkedTokens = 12;

tensorfold::GrammarVocabulary vocabulary() {
  tensorfold::GrammarVocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary.token_bytes.emplace_back(1, static_cast<char>(byte));
  for (const char* piece : {"{\"", "\":", "\",", "ab", "ba", "aab", "\xc3\xa9", "\xe6\x97", "00", "true"}) {
    vocabulary.token_bytes.emplace_back(piece);
  }
  vocabulary.token_bytes.emplace_back();
  return vocabulary;
}

GrammarSource source_of(const std::uint8_t* data, std::size_t size) {
  GrammarSource source;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0:
      source.kind = GrammarSource::Kind::kJsonSchema;
      source.json = nlohmann::ordered_json::parse(text, nullptr, false);
      if (source.json.is_discarded()) source.json = true;
      break;
    case 1:
      source.kind = GrammarSource::Kind::kRegex;
      source.text = text;
      break;
    case 2:
      source.kind = GrammarSource::Kind::kEbnf;
      source.text = text;
      break;
    default:
      source.kind = GrammarSource::Kind::kChoice;
      for (std::size_t start = 0; start <= text.size();) {
        const std::size_t end = std::min(text.find('\n', start), text.size());
        source.choices.push_back(text.substr(start, end - start));
        start = end + 1;
      }
  }
  return source;
}

void walk(GrammarMatcher& matcher, std::size_t vocabulary_size) {
  std::vector<std::uint32_t> bits((vocabulary_size + 31) / 32);
  for (int step = 0; step < kWalkedTokens; ++step) {
    matcher.mask(bits);
    std::int32_t chosen = -1;
    for (std::int32_t id = 0; id < static_cast<std::int32_t>(vocabulary_size); ++id) {
      const bool allowed = (bits[static_cast<std::size_t>(id) / 32] >> (id % 32) & 1u) != 0;
      if (matcher.clone()->advance(id) != allowed) std::abort();
      if (allowed && (chosen < 0 || (id * 7 + step) % 5 == 0)) chosen = id;
    }
    if (chosen < 0) {
      if (!matcher.is_complete()) std::abort();
      return;
    }
    if (!matcher.advance(chosen)) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0 || size > 4096) return 0;
  static const tensorfold::GrammarVocabulary kVocabulary = vocabulary();
  static const std::shared_ptr<GrammarCompiler> kCompiler = GrammarCompiler::create(kVocabulary);
  try {
    const auto matcher = kCompiler->compile(source_of(data, size))->start();
    walk(*matcher, kVocabulary.token_bytes.size());
  } catch (const tensorfold::Error& error) {
    if (error.code() == tensorfold::ErrorCode::kInternal) std::abort();
  }
  return 0;
}
