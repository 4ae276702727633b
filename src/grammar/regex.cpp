// See regex.h. A recursive-descent parser builds a small tree; writing it out resolves the anchors, because what a
// pattern leaves open at its ends depends on where they stand.
#include "grammar/regex.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/limits.h"
#include "grammar/hexadecimal_escape.h"
#include "grammar/utf8.h"

namespace tensorfold {
namespace {

constexpr int kGroupDepthMax = limits::kGrammarDepthMax / 4;  // a group takes up to three levels of the grammar

constexpr std::size_t kPiecesInRule = 16;
constexpr std::int64_t kCopiedPiecesMax = 512;  // of a repeated group, in all its copies

struct Piece {
  enum class Kind { kSet, kSequence, kChoice, kRepeat, kStart, kEnd };
  Kind kind = Kind::kSequence;
  CharacterSet set;
  std::vector<Piece> parts;
  int minimum = 0;
  int maximum = 0;
  bool has_anchor = false;
};

Piece make_set(CharacterSet set) {
  Piece piece;
  piece.kind = Piece::Kind::kSet;
  piece.set = std::move(set);
  return piece;
}

// Where ECMAScript and Python differ (Unicode digits, letters, spaces), a class holds what both hold.
const CharacterSet& digits() {
  static const CharacterSet set{{'0', '9'}};
  return set;
}
const CharacterSet& word_characters() {
  static const CharacterSet set{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  return set;
}
const CharacterSet& spaces() {
  static const CharacterSet set{{'\t', '\r'}, {' ', ' '}};
  return set;
}
/// What either of them takes for a space.
const CharacterSet& any_spaces() {
  static const CharacterSet set{{'\t', '\r'},     {0x1c, 0x20},     {0x85, 0x85},     {0xa0, 0xa0},
                                {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f},
                                {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
  return set;
}
const CharacterSet& line_ends() {
  static const CharacterSet set{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
  return set;
}

/// A class such as \d with what its complement may hold inside [^...].
struct EscapedClass {
  CharacterSet members;
  CharacterSet excluded;  // a superset of the members: what [^...] must not hold
};

class Parser {
 public:
  explicit Parser(std::string_view pattern) : characters_(decode_utf8(pattern)) {}

  Piece parse() {
    Piece piece = parse_choice(0);
    if (!at_end()) refuse("an unmatched ')'");
    return piece;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    fail(ErrorCode::kInvalidArgument, "the pattern has {} at character {}", what, position_ + 1);
  }
  bool at_end() const { return position_ == characters_.size(); }
  std::uint32_t peek() const { return at_end() ? 0 : characters_[position_]; }
  bool looking_at(std::string_view text) const {
    if (characters_.size() - position_ < text.size()) return false;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (characters_[position_ + i] != static_cast<unsigned char>(text[i])) return false;
    }
    return true;
  }
  bool take(std::string_view text) {
    if (!looking_at(text)) return false;
    position_ += text.size();
    return true;
  }
  std::uint32_t take_character(const char* missing) {
    if (at_end()) refuse(missing);
    return characters_[position_++];
  }

  Piece parse_choice(int depth) {
    if (depth > kGroupDepthMax) refuse("groups nested too deeply");
    Piece choice;
    choice.kind = Piece::Kind::kChoice;
    do {
      choice.parts.push_back(parse_sequence(depth));
      choice.has_anchor |= choice.parts.back().has_anchor;
    } while (take("|"));
    return choice.parts.size() == 1 ? std::move(choice.parts.front()) : std::move(choice);
  }

  Piece parse_sequence(int depth) {
    Piece sequence;
    while (!at_end() && peek() != '|' && peek() != ')') {
      sequence.parts.push_back(parse_quantified(depth));
      sequence.has_anchor |= sequence.parts.back().has_anchor;
    }
    return sequence;
  }

  Piece parse_quantified(int depth) {
    Piece piece = parse_atom(depth);
    Piece repeat;
    repeat.kind = Piece::Kind::kRepeat;
    if (!parse_quantifier(repeat)) return piece;
    if (piece.has_anchor) refuse("a repeated anchor");
    take("?");  // lazy: the same texts
    if (peek() == '+') refuse("a possessive or repeated quantifier");
    Piece again;
    if (parse_quantifier(again)) refuse("a repeated quantifier");
    repeat.parts.push_back(std::move(piece));
    return repeat;
  }

  bool parse_quantifier(Piece& repeat) {
    repeat.maximum = GrammarTree::kUnbounded;
    if (take("*")) return true;
    if (take("+")) {
      repeat.minimum = 1;
      return true;
    }
    if (take("?")) {
      repeat.maximum = 1;
      return true;
    }
    return peek() == '{' && parse_counts(repeat);
  }

  /// {m}, {m,} or {m,n}; anything else after '{' is text.
  bool parse_counts(Piece& repeat) {
    const std::size_t start = position_;
    take("{");
    if (looking_at(",")) {
      position_ = start;
      refuse("'{,': write {0,n}");
    }
    const std::optional<int> minimum = parse_count();
    bool valid = minimum.has_value();
    repeat.minimum = repeat.maximum = minimum.value_or(0);
    if (valid && take(",")) {
      repeat.maximum = GrammarTree::kUnbounded;
      if (peek() != '}') {
        const std::optional<int> maximum = parse_count();
        valid = maximum.has_value();
        repeat.maximum = maximum.value_or(0);
      }
    }
    if (!valid || !take("}")) {
      position_ = start;
      return false;
    }
    if (repeat.maximum != GrammarTree::kUnbounded && repeat.maximum < repeat.minimum) {
      refuse("a repetition whose maximum is below its minimum");
    }
    return true;
  }

  std::optional<int> parse_count() {
    std::optional<int> count;
    while (peek() >= '0' && peek() <= '9') {
      count = count.value_or(0) * 10 + static_cast<int>(peek() - '0');
      ++position_;
      if (*count > limits::kGrammarRepeatMax) {
        refuse(fmt::format("a repetition of more than {} times", limits::kGrammarRepeatMax));
      }
    }
    return count;
  }

  Piece parse_atom(int depth) {
    if (take("(")) return parse_group(depth);
    if (take("[")) return make_set(parse_class());
    if (take(".")) return make_set(line_ends().complement());
    if (take("^")) return anchor(Piece::Kind::kStart);
    if (take("$")) return anchor(Piece::Kind::kEnd);
    if (peek() == '*' || peek() == '+' || peek() == '?') refuse("a quantifier with nothing to repeat");
    if (!take("\\")) return make_set(CharacterSet::of(take_character("nothing")));
    if (peek() == 'b' || peek() == 'B') refuse("a word boundary, which isn't supported");
    if (take("A")) return anchor(Piece::Kind::kStart);
    if (take("Z") || take("z")) return anchor(Piece::Kind::kEnd);
    if (const std::optional<EscapedClass> escaped = parse_class_escape()) return make_set(escaped->members);
    return make_set(CharacterSet::of(parse_character_escape()));
  }

  static Piece anchor(Piece::Kind kind) {
    Piece piece;
    piece.kind = kind;
    piece.has_anchor = true;
    return piece;
  }

  Piece parse_group(int depth) {
    if (take("?")) {
      if (looking_at("=") || looking_at("!") || looking_at("<=") || looking_at("<!")) {
        refuse("a look-around, which isn't supported");
      }
      if (take("P<") || take("<")) {
        while (!at_end() && peek() != '>') ++position_;
        if (!take(">")) refuse("a group name without '>'");
      } else if (!take(":")) {
        refuse("a group with flags or of a kind that isn't supported");
      }
    }
    Piece piece = parse_choice(depth + 1);
    if (!take(")")) refuse("a '(' without ')'");
    return piece;
  }

  /// After a backslash: \d and its like.
  std::optional<EscapedClass> parse_class_escape() {
    const CharacterSet ascii = CharacterSet::ascii();
    const CharacterSet beyond = ascii.complement();
    if (take("d")) return EscapedClass{digits(), digits().united_with(beyond)};
    if (take("w")) return EscapedClass{word_characters(), word_characters().united_with(beyond)};
    if (take("s")) return EscapedClass{spaces(), any_spaces()};
    if (take("D")) return EscapedClass{ascii.without(digits()), digits().complement()};
    if (take("W")) return EscapedClass{ascii.without(word_characters()), word_characters().complement()};
    if (take("S")) return EscapedClass{any_spaces().complement(), spaces().complement()};
    return std::nullopt;
  }

  std::uint32_t parse_character_escape() {
    const std::uint32_t character = take_character("a '\\' at its end");
    switch (character) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'f':
        return '\f';
      case 'v':
        return '\v';
      case 'x':
        return parse_hexadecimal(2);
      case 'u':
        return parse_hexadecimal(4);
      case 'U':
        return parse_hexadecimal(8);
      case '0':
        if (!(peek() >= '0' && peek() <= '9')) return 0;
        break;
      default:
        break;
    }
    const bool alphanumeric = (character >= 'a' && character <= 'z') || (character >= 'A' && character <= 'Z') ||
                              (character >= '0' && character <= '9');
    if (alphanumeric) refuse(fmt::format("the escape '\\{}', which isn't supported,", static_cast<char>(character)));
    return character;
  }

  std::uint32_t parse_hexadecimal(int length) {
    return parse_hexadecimal_escape(
        length, [this](const char* what) { return take_character(what); }, [this](const char* what) { refuse(what); });
  }

  CharacterSet parse_class() {
    const bool negated = take("^");
    CharacterSet members;
    CharacterSet excluded;
    bool first = true;
    while (first || peek() != ']' || at_end()) {
      if (at_end()) refuse("a '[' without ']'");
      if (peek() == ']') refuse("a class that begins with ']': write \\]");
      if (looking_at("[:") || looking_at("&&") || looking_at("--")) refuse("a class syntax that isn't supported");
      first = false;
      if (take("\\")) {
        if (const std::optional<EscapedClass> escaped = parse_class_escape()) {
          members = members.united_with(escaped->members);
          excluded = excluded.united_with(escaped->excluded);
          continue;
        }
        --position_;
      }
      const std::uint32_t low = parse_class_character();
      std::uint32_t high = low;
      const bool is_range = peek() == '-' && position_ + 1 < characters_.size() && characters_[position_ + 1] != ']';
      if (is_range) {
        take("-");
        high = parse_class_character();
        if (high < low) refuse("a class range whose end is before its start");
      }
      members = members.united_with(CharacterSet{{low, high}});
      excluded = excluded.united_with(CharacterSet{{low, high}});
    }
    take("]");
    return negated ? excluded.complement() : members;
  }

  std::uint32_t parse_class_character() {
    if (!take("\\")) return take_character("a '[' without ']'");
    if (take("b")) return '\b';
    if (const std::optional<EscapedClass> escaped = parse_class_escape()) refuse("a class as the end of a range");
    return parse_character_escape();
  }

  std::vector<std::uint32_t> characters_;
  std::size_t position_ = 0;
};

/// What a piece is next to.
enum class Edge {
  kInner,   // other pieces of the pattern
  kSearch,  // the pattern's end, where any text may follow unless it is anchored
  kText,    // the text's end
};

class Writer {
 public:
  Writer(GrammarTree& tree, CharacterSpelling& spelling) : tree_(tree), spelling_(spelling) {}

  /// `piece`, then `next`.
  GrammarNode write(const Piece& piece, Edge before, Edge after, GrammarNode next) {
    switch (piece.kind) {
      case Piece::Kind::kSet:
        next = open_end(after, next);
        return open_start(before, tree_.sequence({spelling_.one(piece.set), next}));
      case Piece::Kind::kRepeat:
        next = open_end(after, next);
        return open_start(before, write_repeat(piece, next));
      case Piece::Kind::kChoice: {
        const GrammarNode shared = as_rule(next);
        std::vector<GrammarNode> parts;
        for (const Piece& part : piece.parts) parts.push_back(write(part, before, after, shared));
        return as_rule(tree_.choice(std::move(parts)));
      }
      case Piece::Kind::kSequence:
        return write_sequence(piece.parts, before, after, next);
      case Piece::Kind::kStart:
      case Piece::Kind::kEnd:
        return write_sequence({&piece, 1}, before, after, next);
    }
    return tree_.nothing();
  }

 private:
  [[noreturn]] static void refuse_anchor() {
    fail(ErrorCode::kInvalidArgument, "the pattern has an anchor (^ or $) inside, where it isn't supported");
  }

  GrammarNode as_rule(GrammarNode body) {
    const int rule = tree_.add_rule();
    tree_.set_rule(rule, body);
    return tree_.reference(rule);
  }
  GrammarNode open_start(Edge before, GrammarNode node) {
    return before == Edge::kSearch ? spelling_.any_then(CharacterSet::all(), as_rule(node)) : node;
  }
  GrammarNode open_end(Edge after, GrammarNode next) {
    return after == Edge::kSearch ? as_rule(spelling_.any_then(CharacterSet::all(), next)) : next;
  }

  GrammarNode write_sequence(std::span<const Piece> parts, Edge before, Edge after, GrammarNode next) {
    for (; !parts.empty() && parts.front().kind == Piece::Kind::kStart; parts = parts.subspan(1)) {
      if (before == Edge::kInner) refuse_anchor();
      before = Edge::kText;
    }
    for (; !parts.empty() && parts.back().kind == Piece::Kind::kEnd; parts = parts.first(parts.size() - 1)) {
      if (after == Edge::kInner) refuse_anchor();
      after = Edge::kText;
    }
    if (parts.empty()) {
      const bool open = before == Edge::kSearch || after == Edge::kSearch;
      return open ? spelling_.any_then(CharacterSet::all(), next) : next;
    }
    for (std::size_t i = parts.size(); i-- > 0;) {
      if (parts[i].kind == Piece::Kind::kStart || parts[i].kind == Piece::Kind::kEnd) refuse_anchor();
      const Edge left = i == 0 ? before : Edge::kInner;
      const Edge right = i + 1 == parts.size() ? after : Edge::kInner;
      next = write(parts[i], left, right, next);
      // Long sequences would nest too deeply for one rule.
      if (i % kPiecesInRule == kPiecesInRule - 1) next = as_rule(next);
    }
    return next;
  }

  GrammarNode write_repeat(const Piece& piece, GrammarNode next) {
    const Piece& part = piece.parts.front();
    const bool of_set = part.kind == Piece::Kind::kSet;
    const int copies = std::max(piece.minimum, piece.maximum);
    if (of_set && copies > limits::kGrammarCharacterRepeatMax) {
      fail(ErrorCode::kInvalidArgument,
           "the pattern repeats a character more than {} times, which isn't supported (without a bound it is)",
           limits::kGrammarCharacterRepeatMax);
    }
    // A large group is written once and called; what follows it then isn't known inside.
    if (static_cast<std::int64_t>(piece_count(part)) * copies > kCopiedPiecesMax) {
      const GrammarNode group = write(part, Edge::kInner, Edge::kInner, tree_.empty());
      return tree_.sequence({tree_.repeat(as_rule(group), piece.minimum, piece.maximum), next});
    }
    next = as_rule(next);
    if (piece.maximum == GrammarTree::kUnbounded) {
      next = of_set ? spelling_.any_then(part.set, next) : loop(part, next);
    } else {
      const GrammarNode end = next;
      for (int step = piece.minimum; step < piece.maximum; ++step) {
        next = as_rule(tree_.choice({end, write(part, Edge::kInner, Edge::kInner, next)}));
      }
    }
    for (int step = 0; step < piece.minimum; ++step) {
      next = as_rule(write(part, Edge::kInner, Edge::kInner, next));
    }
    return next;
  }

  GrammarNode loop(const Piece& part, GrammarNode next) {
    const int rule = tree_.add_rule();
    const GrammarNode again = write(part, Edge::kInner, Edge::kInner, tree_.reference(rule));
    tree_.set_rule(rule, tree_.choice({next, again}));
    return tree_.reference(rule);
  }

  static std::size_t piece_count(const Piece& piece) {
    std::size_t count = 1;
    for (const Piece& part : piece.parts) {
      const std::size_t copies = piece.kind == Piece::Kind::kRepeat
                                     ? static_cast<std::size_t>(std::max({piece.minimum, piece.maximum, 1}))
                                     : 1;
      count += std::min<std::size_t>(piece_count(part) * copies, kCopiedPiecesMax + 1);
    }
    return std::min<std::size_t>(count, kCopiedPiecesMax + 1);
  }

  GrammarTree& tree_;
  CharacterSpelling& spelling_;
};

}  // namespace

GrammarNode parse_regex(GrammarTree& tree, std::string_view pattern, RegexMatch match, CharacterSpelling& spelling,
                        GrammarNode next) {
  if (pattern.size() > limits::kGrammarSourceBytesMax) {
    fail(ErrorCode::kInvalidArgument, "the pattern is longer than {} bytes", limits::kGrammarSourceBytesMax);
  }
  const Piece piece = Parser(pattern).parse();
  const Edge edge = match == RegexMatch::kSearch ? Edge::kSearch : Edge::kText;
  return Writer(tree, spelling).write(piece, edge, edge, next);
}

}  // namespace tensorfold
