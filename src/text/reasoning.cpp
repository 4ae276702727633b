// ReasoningSplitter: a small state machine over marks, with any possible beginning of a mark held back.
#include "text/reasoning.h"

#include <algorithm>
#include <span>

namespace tensorfold {
namespace {

struct Mark {
  std::string_view text;
  bool opens;   // what follows is reasoning
  bool closes;  // what follows is content
};

constexpr Mark kThinkMarks[] = {{"<think>", true, false}, {"</think>", false, true}};
constexpr Mark kChannelMarks[] = {{"<|channel>thought", true, false}, {"<channel|>", false, true}};
constexpr Mark kHarmonyMarks[] = {
    {"<|start|>assistant", false, false},
    {"<|channel|>analysis<|message|>", true, false},
    {"<|channel|>commentary<|message|>", false, true},
    {"<|channel|>final<|message|>", false, true},
    {"<|end|>", false, false},
    {"<|return|>", false, false},
};

std::span<const Mark> marks_of(ReasoningFormat format) {
  switch (format) {
    case ReasoningFormat::kThink:
      return kThinkMarks;
    case ReasoningFormat::kChannel:
      return kChannelMarks;
    case ReasoningFormat::kHarmony:
      return kHarmonyMarks;
    default:
      return {};
  }
}

bool is_blank(char byte) {
  return byte == '\n' || byte == '\r' || byte == ' ' || byte == '\t';
}

}  // namespace

ReasoningSplitter::ReasoningSplitter(ReasoningFormat format, bool starts_inside)
    : format_(format), inside_(starts_inside && format != ReasoningFormat::kNone), skip_newlines_(inside_) {}

void ReasoningSplitter::emit(ReplyPieces& out, std::string_view text, std::size_t begin) {
  if (skip_newlines_) {
    while (!text.empty() && (text.front() == '\n' || text.front() == '\r')) {
      text.remove_prefix(1);
      ++begin;
    }
    if (text.empty()) return;
    skip_newlines_ = false;
  }
  if (!inside_) {
    if (text.empty()) return;
    out.content += text;
    out.content_ranges.push_back({decided_bytes_ + begin, decided_bytes_ + begin + text.size()});
    return;
  }
  // Whitespace at the end is shown only once more reasoning follows it.
  pending_space_ += text;
  std::size_t end = pending_space_.size();
  while (end > 0 && is_blank(pending_space_[end - 1])) --end;
  out.reasoning.append(pending_space_, 0, end);
  pending_space_.erase(0, end);
}

bool ReasoningSplitter::apply_mark(std::size_t index) {
  const Mark& mark = marks_of(format_)[index];
  // An opening mark in the middle of the answer is the answer's own text.
  if (mark.opens && reasoning_ended_ && format_ == ReasoningFormat::kThink) return false;
  if (mark.closes && !inside_ && format_ == ReasoningFormat::kThink) return false;
  if (mark.opens) {
    inside_ = true;
    skip_newlines_ = true;
  } else if (mark.closes) {
    reasoning_ended_ |= inside_;
    inside_ = false;
    skip_newlines_ = true;
    pending_space_.clear();
  }
  return true;
}

void ReasoningSplitter::take_marks(ReplyPieces& out, bool at_end) {
  const std::span<const Mark> marks = marks_of(format_);
  while (true) {
    std::size_t position = std::string::npos;
    std::size_t winner = 0;
    std::size_t safe = held_.size();
    for (std::size_t i = 0; i < marks.size(); ++i) {
      const std::size_t found = held_.find(marks[i].text);
      if (found < position) {
        position = found;
        winner = i;
      }
      for (std::size_t length = std::min(held_.size(), marks[i].text.size() - 1); !at_end && length > 0; --length) {
        if (!std::string_view(held_).ends_with(marks[i].text.substr(0, length))) continue;
        safe = std::min(safe, held_.size() - length);
        break;
      }
    }
    if (position == std::string::npos) {
      emit(out, std::string_view(held_).substr(0, safe), 0);
      held_.erase(0, safe);
      decided_bytes_ += safe;
      return;
    }
    emit(out, std::string_view(held_).substr(0, position), 0);
    const std::size_t size = marks[winner].text.size();
    if (!apply_mark(winner)) emit(out, std::string_view(held_).substr(position, size), position);
    held_.erase(0, position + size);
    decided_bytes_ += position + size;
  }
}

ReplyPieces ReasoningSplitter::push(std::string_view text) {
  ReplyPieces out;
  held_ += text;
  take_marks(out, false);
  return out;
}

ReplyPieces ReasoningSplitter::finish() {
  ReplyPieces out;
  take_marks(out, true);
  return out;
}

}  // namespace tensorfold
