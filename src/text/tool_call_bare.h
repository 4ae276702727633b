// Calls without markup: an answer that is nothing but JSON which names offered tools (Llama 3, and models whose
// template has no form of its own), in a code fence or not. While that is what an answer may still become, it is held
// back whole.
#pragma once

#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tool_call_reader.h"
#include "text/tool_offer.h"
#include "text/tool_value.h"

namespace tensorfold {

class BareCallScanner {
 public:
  enum class Verdict {
    kOpen,   // undecided
    kText,   // an ordinary answer
    kCalls,  // every part is a call; only at the answer's end
  };

  /// By the first character that isn't blank.
  static bool may_begin(std::string_view answer);
  /// `answer`: all of it so far; grows from call to call.
  Verdict scan(std::string_view answer, BlockExtent extent);
  /// After kOpen at the answer's end: its calls; kText when one of its parts is none.
  Verdict read(std::string_view answer, BlockExtent extent, const ToolOffer& offer,
               std::vector<NamedArguments>& calls) const;

 private:
  enum class Place { kFence, kBetween, kValue, kBehindFence };

  Verdict take_fence(std::string_view answer);
  Verdict take_between(std::string_view answer);
  Verdict take_value(std::string_view answer);

  Place place_ = Place::kFence;
  bool fenced_ = false;
  std::size_t position_ = 0;
  std::size_t value_begin_ = 0;
  JsonNesting nesting_;
  std::vector<std::pair<std::size_t, std::size_t>> values_;  // begin and end of those that are whole
};

}  // namespace tensorfold
