// See grammar_tree.h.
#include "grammar/grammar_tree.h"

#include <algorithm>

#include "base/error.h"
#include "base/limits.h"
#include "grammar/utf8.h"

namespace tensorfold {
namespace {

constexpr std::int64_t kWideClassCharacters = 256;
constexpr std::int64_t kWideClassCost = 32;
constexpr int kInlinedNodesMax = 24;
constexpr int kInlinedRulesDepthMax = 4;

[[noreturn]] void too_large(const char* what, std::size_t limit) {
  fail(ErrorCode::kInvalidArgument, "the grammar is too large: more than {} {}", limit, what);
}

/// A character as xgrammar's grammar texts spell it, inside quotes or brackets.
void append_escaped(std::uint32_t character, std::string& out) {
  const bool plain = (character >= 'a' && character <= 'z') || (character >= 'A' && character <= 'Z') ||
                     (character >= '0' && character <= '9') || character == ' ' || character == '_';
  if (plain) {
    out += static_cast<char>(character);
  } else {
    fmt::format_to(std::back_inserter(out), "\\U{:08x}", character);
  }
}

}  // namespace

GrammarNode GrammarTree::add(Expression expression) {
  if (expressions_.size() >= limits::kGrammarExpressionsMax) too_large("expressions", limits::kGrammarExpressionsMax);
  part_count_ += expression.parts.size() + expression.set.ranges().size();
  if (part_count_ > 4 * limits::kGrammarExpressionsMax) too_large("parts", 4 * limits::kGrammarExpressionsMax);
  for (const GrammarNode part : expression.parts) {
    expression.depth = std::max(expression.depth, at(part).depth + 1);
  }
  if (expression.depth > limits::kGrammarDepthMax) {
    fail(ErrorCode::kInvalidArgument, "the grammar is nested deeper than {} levels", limits::kGrammarDepthMax);
  }
  expressions_.push_back(std::move(expression));
  return static_cast<GrammarNode>(expressions_.size() - 1);
}

GrammarNode GrammarTree::literal(std::string_view text) {
  if (!is_valid_utf8(text)) fail(ErrorCode::kInvalidArgument, "a text of the grammar isn't valid UTF-8");
  literal_bytes_ += text.size();
  if (literal_bytes_ > limits::kGrammarLiteralBytesMax) {
    too_large("bytes of literal text", limits::kGrammarLiteralBytesMax);
  }
  if (text.empty()) return empty();
  Expression expression;
  expression.kind = Kind::kLiteral;
  expression.text = text;
  return add(std::move(expression));
}

GrammarNode GrammarTree::characters(const CharacterSet& set) {
  if (set.is_empty()) return nothing();
  Expression expression;
  expression.kind = Kind::kCharacters;
  expression.set = set;
  return add(std::move(expression));
}

GrammarNode GrammarTree::sequence(std::vector<GrammarNode> parts) {
  if (parts.size() == 1) return parts.front();
  Expression expression;
  expression.kind = Kind::kSequence;
  expression.parts = std::move(parts);
  return add(std::move(expression));
}

GrammarNode GrammarTree::choice(std::vector<GrammarNode> parts) {
  if (parts.size() == 1) return parts.front();
  Expression expression;
  expression.kind = Kind::kChoice;
  expression.parts = std::move(parts);
  return add(std::move(expression));
}

GrammarNode GrammarTree::repeat(GrammarNode part, int minimum, int maximum) {
  TF_ASSERT(minimum >= 0 && (maximum == kUnbounded || maximum >= minimum));
  const bool of_characters = at(part).kind == Kind::kCharacters;
  const int most = of_characters ? limits::kGrammarCharacterRepeatMax : limits::kGrammarRepeatMax;
  if (std::max(minimum, maximum) > most) {
    fail(ErrorCode::kInvalidArgument, "a repetition of more than {} times isn't supported{}", most,
         of_characters ? " for single characters (without a bound it is)" : "");
  }
  if (maximum == 0) return empty();
  if (minimum == 1 && maximum == 1) return part;
  if (!of_characters && std::max(minimum, maximum) > 1) return unrolled(part, minimum, maximum);
  Expression expression;
  expression.kind = Kind::kRepeat;
  expression.parts = {part};
  expression.minimum = minimum;
  expression.maximum = maximum;
  return add(std::move(expression));
}

GrammarNode GrammarTree::unrolled(GrammarNode part, int minimum, int maximum) {
  const auto as_rule = [this](GrammarNode body) {
    const int rule = add_rule();
    set_rule(rule, body);
    return reference(rule);
  };
  // Each step is a rule whose end is the next step, so that a mask is the same wherever the repetition stands.
  // Something small is written out in each, alternative by alternative, for the same reason.
  const GrammarNode one = count_nodes(part, kInlinedNodesMax) <= kInlinedNodesMax ? part : as_rule(part);
  const std::vector<GrammarNode> forms = at(one).kind == Kind::kChoice ? at(one).parts : std::vector<GrammarNode>{one};
  const auto step = [&](GrammarNode rest, bool may_end) {
    std::vector<GrammarNode> alternatives;
    if (may_end) alternatives.push_back(empty());
    for (const GrammarNode form : forms) alternatives.push_back(sequence({form, rest}));
    return as_rule(choice(std::move(alternatives)));
  };
  GrammarNode rest = maximum == kUnbounded ? repeat(one, 0, kUnbounded) : empty();
  for (int index = minimum; index < maximum; ++index) rest = step(rest, true);
  for (int index = 0; index < minimum; ++index) rest = step(rest, false);
  return rest;
}

int GrammarTree::count_nodes(GrammarNode node, int limit) const {
  int count = 1;
  for (const GrammarNode part : at(node).parts) {
    if (count > limit) break;
    count += count_nodes(part, limit - count);
  }
  return count;
}

GrammarNode GrammarTree::counted_until(const CharacterSet& excluded, int minimum, int maximum, std::string_view end) {
  TF_ASSERT(!end.empty() && excluded.contains(static_cast<unsigned char>(end.front())));
  Expression expression;
  expression.kind = Kind::kCounted;
  expression.set = excluded;
  expression.minimum = minimum;
  expression.maximum = maximum;
  return sequence({add(std::move(expression)), literal(end)});
}

GrammarNode GrammarTree::reference(int rule) {
  TF_ASSERT(rule >= 0 && rule < rule_count());
  Expression expression;
  expression.kind = Kind::kReference;
  expression.rule = rule;
  return add(std::move(expression));
}

int GrammarTree::add_rule() {
  if (rules_.size() >= limits::kGrammarRulesMax) too_large("rules", limits::kGrammarRulesMax);
  rules_.push_back(-1);
  return rule_count() - 1;
}

void GrammarTree::set_rule(int rule, GrammarNode body) {
  rules_[static_cast<std::size_t>(rule)] = body;
}

/// Writes reachable rules, leaving out what no text can finish.
class GrammarTree::Writer {
 public:
  explicit Writer(const GrammarTree& tree) : tree_(tree), reached_(tree.rules_.size(), false) {}

  std::string write() {
    find_finishing();
    if (!can_finish(tree_.rules_[static_cast<std::size_t>(tree_.root_)])) {
      fail(ErrorCode::kInvalidArgument, "no text satisfies this grammar");
    }
    reach(tree_.root_);
    out_ = "root ::= ";
    out_ += fmt::format("r{}\n", tree_.root_);
    while (!queue_.empty() || written_loops_ < loops_.size()) {
      if (queue_.empty()) {
        write_loop(written_loops_++);
        continue;
      }
      const int rule = queue_.back();
      queue_.pop_back();
      out_ += fmt::format("r{} ::= ", rule);
      write_node(tree_.rules_[static_cast<std::size_t>(rule)], 1);
      out_ += '\n';
    }
    return std::move(out_);
  }

 private:
  /// Which expressions some text can finish, from the leaves up: linear in the size of the grammar.
  void find_finishing() {
    const std::size_t count = tree_.expressions_.size();
    finishes_.assign(count, false);
    std::vector<std::vector<GrammarNode>> parents(count);
    std::vector<std::vector<GrammarNode>> references(tree_.rules_.size());
    std::vector<std::vector<int>> rules_of_body(count);
    std::vector<std::size_t> missing(count, 1);
    std::vector<GrammarNode> ready;
    for (std::size_t node = 0; node < count; ++node) {
      const Expression& expression = tree_.expressions_[node];
      for (const GrammarNode part : expression.parts) {
        parents[static_cast<std::size_t>(part)].push_back(static_cast<GrammarNode>(node));
      }
      if (expression.kind == Kind::kReference) {
        references[static_cast<std::size_t>(expression.rule)].push_back(static_cast<GrammarNode>(node));
      }
      if (expression.kind == Kind::kSequence) missing[node] = expression.parts.size();
      const bool leaf = expression.kind == Kind::kLiteral || expression.kind == Kind::kCharacters ||
                        expression.kind == Kind::kCounted ||
                        (expression.kind == Kind::kSequence && expression.parts.empty()) ||
                        (expression.kind == Kind::kRepeat && expression.minimum == 0);
      if (leaf) ready.push_back(static_cast<GrammarNode>(node));
    }
    for (std::size_t rule = 0; rule < tree_.rules_.size(); ++rule) {
      TF_ASSERT(tree_.rules_[rule] >= 0);
      rules_of_body[static_cast<std::size_t>(tree_.rules_[rule])].push_back(static_cast<int>(rule));
    }
    while (!ready.empty()) {
      const auto node = static_cast<std::size_t>(ready.back());
      ready.pop_back();
      if (finishes_[node]) continue;
      finishes_[node] = true;
      for (const GrammarNode parent : parents[node]) {
        std::size_t& left = missing[static_cast<std::size_t>(parent)];
        if (left > 0 && --left == 0) ready.push_back(parent);
      }
      for (const int rule : rules_of_body[node]) {
        const std::vector<GrammarNode>& uses = references[static_cast<std::size_t>(rule)];
        ready.insert(ready.end(), uses.begin(), uses.end());
      }
    }
  }

  bool can_finish(GrammarNode node) const { return finishes_[static_cast<std::size_t>(node)]; }

  void reach(int rule) {
    if (reached_[static_cast<std::size_t>(rule)]) return;
    reached_[static_cast<std::size_t>(rule)] = true;
    queue_.push_back(rule);
  }

  /// `copies`: how often the bounded repetitions around this node unroll it.
  void write_node(GrammarNode node, std::int64_t copies) {
    const Expression& expression = tree_.at(node);
    if (out_.size() > limits::kGrammarTextBytesMax) too_large("bytes", limits::kGrammarTextBytesMax);
    switch (expression.kind) {
      case Kind::kLiteral:
        write_literal(expression.text);
        break;
      case Kind::kCharacters:
        count_cost(expression.set, copies);
        write_characters(expression.set, "[");
        break;
      case Kind::kSequence:
        write_parts(expression.parts, " ", copies);
        break;
      case Kind::kChoice:
        write_parts(finishing(expression.parts), " | ", copies);
        break;
      case Kind::kRepeat:
        write_repeat(expression, copies);
        break;
      case Kind::kCounted:
        count_cost(expression.set, 1);
        write_characters(expression.set, "[^");
        write_counts(expression);
        break;
      case Kind::kReference:
        reach(expression.rule);
        out_ += fmt::format("r{}", expression.rule);
        break;
    }
  }

  std::vector<GrammarNode> finishing(const std::vector<GrammarNode>& parts) const {
    std::vector<GrammarNode> kept;
    for (const GrammarNode part : parts) {
      if (can_finish(part)) kept.push_back(part);
    }
    return kept;
  }

  void write_literal(const std::string& text) {
    out_ += '"';
    for (const std::uint32_t character : decode_utf8(text)) append_escaped(character, out_);
    out_ += '"';
  }

  /// A wide class at each of its positions means a walk over most of the vocabulary when the grammar is compiled.
  void count_cost(const CharacterSet& set, std::int64_t copies) {
    std::int64_t characters = 0;
    for (const CharacterRange& range : set.ranges()) characters += range.last - range.first + 1;
    cost_ += copies * (characters > kWideClassCharacters ? kWideClassCost : 1);
    if (cost_ > limits::kGrammarCostMax) {
      fail(ErrorCode::kInvalidArgument,
           "the grammar is too large: too many character classes, once bounded repetitions are unrolled");
    }
  }

  void write_characters(const CharacterSet& set, const char* open) {
    out_ += open;
    for (const CharacterRange& range : set.ranges()) {
      append_escaped(range.first, out_);
      if (range.last == range.first) continue;
      out_ += '-';
      append_escaped(range.last, out_);
    }
    out_ += ']';
  }

  void write_parts(const std::vector<GrammarNode>& parts, const char* separator, std::int64_t copies) {
    if (parts.empty()) {
      out_ += "\"\"";
      return;
    }
    out_ += '(';
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (i > 0) out_ += separator;
      write_node(parts[i], copies);
    }
    out_ += ')';
  }

  void write_repeat(const Expression& expression, std::int64_t copies) {
    const GrammarNode part = expression.parts.front();
    if (!can_finish(part)) {
      out_ += "\"\"";
      return;
    }
    const bool of_characters = tree_.at(part).kind == Kind::kCharacters;
    if (!of_characters && expression.maximum == kUnbounded) {
      // A rule that ends in itself; a group of one form may stand before it.
      out_ += '(';
      if (expression.minimum == 1) {
        write_node(part, copies);
        out_ += ' ';
      }
      out_ += fmt::format("s{})", loops_.size());
      loops_.push_back(part);
      return;
    }
    const int count = std::max({expression.minimum, expression.maximum, 1});
    out_ += '(';
    write_node(part, copies * count);
    out_ += ')';
    write_counts(expression);
  }

  void write_loop(std::size_t loop) {
    std::vector<GrammarNode> forms;
    collect_forms(loops_[loop], kInlinedRulesDepthMax, forms);
    out_ += fmt::format("s{} ::= \"\"", loop);
    for (const GrammarNode form : forms) {
      out_ += " | (";
      write_node(form, 1);
      out_ += fmt::format(" s{})", loop);
    }
    out_ += '\n';
  }

  /// The alternatives of a repeated part, through references to rules that consist of characters alone: a token that
  /// spans several repetitions then stays inside one rule.
  void collect_forms(GrammarNode node, int depth, std::vector<GrammarNode>& forms) const {
    const Expression& expression = tree_.at(node);
    if (!can_finish(node)) return;
    if (expression.kind == Kind::kChoice) {
      for (const GrammarNode part : expression.parts) collect_forms(part, depth, forms);
      return;
    }
    if (expression.kind == Kind::kReference && depth > 0) {
      const GrammarNode body = tree_.rules_[static_cast<std::size_t>(expression.rule)];
      if (is_flat(body, depth - 1)) {
        collect_forms(body, depth - 1, forms);
        return;
      }
    }
    forms.push_back(node);
  }

  /// Small, and without references but to rules that are flat themselves.
  bool is_flat(GrammarNode node, int depth) const {
    if (tree_.count_nodes(node, kInlinedNodesMax) > kInlinedNodesMax) return false;
    const Expression& expression = tree_.at(node);
    if (expression.kind == Kind::kReference) {
      return depth > 0 && is_flat(tree_.rules_[static_cast<std::size_t>(expression.rule)], depth - 1);
    }
    return std::all_of(expression.parts.begin(), expression.parts.end(),
                       [this, depth](GrammarNode part) { return is_flat(part, depth); });
  }

  void write_counts(const Expression& expression) {
    if (expression.maximum != kUnbounded) {
      out_ += fmt::format("{{{},{}}}", expression.minimum, expression.maximum);
    } else if (expression.minimum > 1) {
      out_ += fmt::format("{{{},}}", expression.minimum);
    } else {
      out_ += expression.minimum == 0 ? '*' : '+';
    }
  }

  const GrammarTree& tree_;
  std::vector<bool> finishes_;  // by expression
  std::vector<bool> reached_;   // by rule
  std::vector<int> queue_;
  std::vector<GrammarNode> loops_;  // parts that repeat without a bound, by the number of their rule
  std::size_t written_loops_ = 0;
  std::int64_t cost_ = 0;
  std::string out_;
};

std::string GrammarTree::to_ebnf() const {
  TF_ASSERT(root_ >= 0);
  return Writer(*this).write();
}

}  // namespace tensorfold
