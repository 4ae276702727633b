// Helpers of the grammar tests: a small vocabulary, texts checked byte by byte, and the exactness of masks, by brute
// force.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "grammar/grammar.h"

namespace tensorfold::testing {

/// Ids 0 to 255 are single bytes; then pieces of several bytes that cut texts, escapes and characters in odd places;
/// the last id is a control token.
inline GrammarVocabulary small_vocabulary() {
  GrammarVocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary.token_bytes.emplace_back(1, static_cast<char>(byte));
  for (const char* piece : {"{\"",      "\":",
                            "\",",      "\"}",
                            " \"",      ": ",
                            "  ",       "\n  ",
                            "true",     "false",
                            "null",     "name",
                            "\"name\"", "a\"",
                            "abc",      "ab",
                            "ba",       "aba",
                            "12",       "-1",
                            "0.",       "00",
                            "\xc3\xa9", "\xe6\x97\xa5\xe6",
                            "\x9c\xac", "\xf0\x9f",
                            "\\u",      "\\u00",
                            "\\\"",     "\\n",
                            "}}",       "}]",
                            "],",       "[{",
                            ", ",       ",\n",
                            "aaaaaaaa", "                                 "}) {
    vocabulary.token_bytes.emplace_back(piece);
  }
  vocabulary.token_bytes.emplace_back();
  return vocabulary;
}

inline std::shared_ptr<GrammarCompiler> small_compiler() {
  static const std::shared_ptr<GrammarCompiler> compiler = GrammarCompiler::create(small_vocabulary());
  return compiler;
}

inline GrammarSource schema_source(const std::string& text) {
  GrammarSource source;
  source.kind = GrammarSource::Kind::kJsonSchema;
  source.json = nlohmann::ordered_json::parse(text);
  return source;
}
inline GrammarSource object_source() {
  return {};
}
inline GrammarSource text_source(GrammarSource::Kind kind, std::string text) {
  GrammarSource source;
  source.kind = kind;
  source.text = std::move(text);
  return source;
}
inline GrammarSource regex_source(std::string text) {
  return text_source(GrammarSource::Kind::kRegex, std::move(text));
}
inline GrammarSource ebnf_source(std::string text) {
  return text_source(GrammarSource::Kind::kEbnf, std::move(text));
}
inline GrammarSource choice_source(std::vector<std::string> choices) {
  GrammarSource source;
  source.kind = GrammarSource::Kind::kChoice;
  source.choices = std::move(choices);
  return source;
}

/// Whether the whole text satisfies the grammar, fed byte by byte.
inline bool accepts(const GrammarSource& source, const std::string& text) {
  const std::unique_ptr<GrammarMatcher> matcher = small_compiler()->compile(source)->start();
  for (const char byte : text) {
    if (!matcher->advance(static_cast<unsigned char>(byte))) return false;
  }
  return matcher->is_complete();
}

/// The message that refuses the source; "" when it is accepted.
inline std::string refusal(const GrammarSource& source) {
  try {
    small_compiler()->compile(source);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
}

inline bool bit(const std::vector<std::uint32_t>& bits, std::int32_t id) {
  return (bits[static_cast<std::size_t>(id) / 32] >> (id % 32) & 1u) != 0;
}

/// Walks along random allowed tokens and checks at each step that the mask holds exactly the tokens that advance()
/// takes. Returns the text when the grammar was completed, else what was written within `steps`.
inline std::string check_masks(const GrammarSource& source, unsigned seed, int steps, bool& complete) {
  const std::shared_ptr<const CompiledGrammar> grammar = small_compiler()->compile(source);
  const GrammarVocabulary vocabulary = small_vocabulary();
  const auto size = static_cast<std::int32_t>(vocabulary.token_bytes.size());
  std::vector<std::uint32_t> bits(static_cast<std::size_t>(size + 31) / 32);
  std::unique_ptr<GrammarMatcher> matcher = grammar->start();
  std::mt19937 random(seed);
  std::string text;
  complete = false;
  for (int step = 0; step < steps; ++step) {
    matcher->mask(bits);
    std::vector<std::int32_t> allowed;
    for (std::int32_t id = 0; id < size; ++id) {
      const bool taken = matcher->clone()->advance(id);
      EXPECT_EQ(bit(bits, id), taken) << "token " << id << " '" << vocabulary.token_bytes[static_cast<std::size_t>(id)]
                                      << "' after '" << text << "'";
      if (taken) allowed.push_back(id);
    }
    complete = matcher->is_complete();
    if (allowed.empty()) {
      EXPECT_TRUE(complete) << "a dead end after '" << text << "'";
      return text;
    }
    if (complete && random() % 4 == 0) return text;
    const std::int32_t chosen = allowed[random() % allowed.size()];
    EXPECT_TRUE(matcher->advance(chosen));
    text += vocabulary.token_bytes[static_cast<std::size_t>(chosen)];
    if (::testing::Test::HasFailure()) return text;
  }
  complete = matcher->is_complete();
  return text;
}

}  // namespace tensorfold::testing
