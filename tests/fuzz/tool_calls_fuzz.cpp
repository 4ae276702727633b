// Any bytes as an answer of a request that offers tools: the first byte says how it ends and how it is cut. Whatever
// the cuts, text and calls are the same; arguments are JSON; and no byte of a reply without calls is lost.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "text/tool_calls.h"

namespace {

using namespace tensorfold;

std::shared_ptr<const ToolOffer> offer() {
  static const auto offered = std::make_shared<const ToolOffer>(nlohmann::ordered_json::parse(R"([
      {"function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"},
       "n": {"type": "integer"}, "l": {"type": "array"}, "o": {"type": "object"}, "b": {"type": "boolean"}}}}},
      {"function": {"name": "ping"}}])"));
  return offered;
}

struct Outcome {
  std::string text;
  std::string withheld;
  std::string calls;
  bool any_call = false;
};

Outcome read(std::string_view answer, std::size_t piece, bool complete, bool one_call) {
  ToolCallSplitter splitter(offer(), one_call);
  Outcome outcome;
  const auto take = [&outcome](const AnswerPieces& pieces) {
    outcome.text += pieces.content;
    outcome.withheld += pieces.withheld;
  };
  for (std::size_t at = 0; at < answer.size(); at += piece) take(splitter.push(answer.substr(at, piece)));
  take(splitter.finish(complete));
  for (const ToolCall& call : splitter.calls()) {
    if (!nlohmann::json::parse(call.arguments, nullptr, false).is_object()) std::abort();
    outcome.calls += call.name + call.arguments;
    outcome.any_call = true;
  }
  return outcome;
}

bool is_ascii(std::string_view text) {
  for (const char byte : text) {
    if (static_cast<unsigned char>(byte) >= 0x80) return false;
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2 || size > 8192) return 0;
  const bool complete = (data[0] & 1) != 0, one_call = (data[0] & 2) != 0;
  const std::string_view answer(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (!is_ascii(answer)) return 0;  // a decoder gives whole characters only
  const Outcome whole = read(answer, answer.size(), complete, one_call);
  for (const std::size_t piece : {std::size_t{1}, static_cast<std::size_t>(data[0] >> 2) + 1}) {
    const Outcome cut = read(answer, piece, complete, one_call);
    if (cut.text != whole.text || cut.withheld != whole.withheld || cut.calls != whole.calls) std::abort();
  }
  if (!whole.any_call && whole.withheld.empty() && whole.text != answer) std::abort();
  return 0;
}
