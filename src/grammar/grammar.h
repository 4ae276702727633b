// Grammars that a reply must follow, as masks over a vocabulary: the room's public face. A compiler belongs to one
// vocabulary, a compiled grammar to one request's source (shared through the compiler's cache), a matcher to one path
// of tokens. What does the work (xgrammar) stays behind this header.
//
// Errors: Error(kInvalidArgument) for a source that can't be compiled, with what is wrong and where.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tensorfold {

struct GrammarVocabulary {
  /// By id: the exact bytes that the token adds to the text. Empty: never allowed (control tokens, ids without a
  /// token).
  std::vector<std::string> token_bytes;
};

/// A piece of a text that is put together from several kinds of grammar: calls of tools, for one.
struct GrammarPart {
  enum class Kind {
    kText,        // text: exactly this
    kBlanks,      // up to `maximum` blanks and line ends
    kJsonSchema,  // json: a value that satisfies the schema
    kJsonObject,  // any JSON object
    kTextUntil,   // anything up to the first `text` (ASCII), which ends it
    kSequence,    // parts, one after another
    kChoice,      // one of the parts
    kRepeat,      // the only part, `minimum` to `maximum` times; -1: no end
  };
  Kind kind = Kind::kText;
  std::string text;
  nlohmann::ordered_json json;
  std::vector<GrammarPart> parts;
  int minimum = 0;
  int maximum = 0;
};

struct GrammarSource {
  enum class Kind {
    kJsonSchema,  // json: the schema
    kJsonObject,  // any JSON object
    kRegex,       // text: the pattern, which describes the whole reply
    kChoice,      // choices: one of these texts
    kEbnf,        // text: the grammar, root rule "root"
    kParts,       // parts
  };
  Kind kind = Kind::kJsonObject;
  nlohmann::ordered_json json;
  std::string text;
  std::vector<std::string> choices;
  GrammarPart parts;
};

/// Where a path of tokens stands in a grammar. One thread at a time, clones included: clones share what they have in
/// common.
class GrammarMatcher {
 public:
  virtual ~GrammarMatcher() = default;
  virtual std::unique_ptr<GrammarMatcher> clone() const = 0;
  /// The path grows by a token. False, and nothing changes, when the grammar doesn't allow it.
  virtual bool advance(std::int32_t token) = 0;
  /// The same for text that isn't a whole token. Only before the first token.
  virtual bool advance_text(std::string_view text) = 0;
  /// Sets exactly the bits of the tokens that may come next (bit i of word i / 32 is id i). At least one word for each
  /// 32 ids.
  virtual void mask(std::span<std::uint32_t> allowed_bits) = 0;
  /// The text so far satisfies the grammar.
  virtual bool is_complete() = 0;
};

class CompiledGrammar {
 public:
  virtual ~CompiledGrammar() = default;
  virtual std::unique_ptr<GrammarMatcher> start() const = 0;
  virtual std::size_t memory_bytes() const = 0;
};

/// Compiles and keeps what was compiled, least recently used leaving first. Any thread.
class GrammarCompiler {
 public:
  static std::shared_ptr<GrammarCompiler> create(GrammarVocabulary vocabulary);
  virtual ~GrammarCompiler() = default;
  /// Blocking work, up to seconds for a large source: on a worker.
  virtual std::shared_ptr<const CompiledGrammar> compile(const GrammarSource& source) = 0;
};

/// The text that is handed to xgrammar for a source; for tests and diagnosis.
std::string grammar_text(const GrammarSource& source);

}  // namespace tensorfold
