// Readers of one marked block in which a model writes calls: what stands between an opening mark and its closing mark.
// They follow the block while it grows and tell what is certain at once, so that a client sees a long call being
// written. Which formats there are, and where a block begins, is tool_calls.h's.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "text/tool_offer.h"

namespace tensorfold {

/// Receives calls. begin and end alternate; a call whose end never comes was none.
class ToolCallSink {
 public:
  virtual ~ToolCallSink() = default;
  virtual void begin(const std::string& name) = 0;
  /// More of the arguments' JSON text.
  virtual void add(std::string_view arguments) = 0;
  virtual void end() = 0;
};

/// How much of a block there is.
enum class BlockExtent {
  kGrowing,   // more may come
  kComplete,  // the model ended its reply: closing marks and brackets that are missing are supplied
  kCut,       // the reply was cut (a limit, a stop string): what is open stays open
};

class ToolCallReader {
 public:
  enum class State { kReading, kDone, kBroken };

  virtual ~ToolCallReader() = default;
  /// `text`: all of the block after its opening mark, growing from call to call. kDone: used() bytes of it were the
  /// block, closing mark included. kBroken: it isn't a call; used() says how far that is known.
  virtual State read(std::string_view text, BlockExtent extent, ToolCallSink& sink) = 0;
  virtual std::size_t used() const = 0;
};

/// <function=NAME> <parameter=KEY> VALUE </parameter> ... </function>, closed by `close`.
std::unique_ptr<ToolCallReader> make_xml_call_reader(const ToolOffer& offer, std::string close);
/// {"name": NAME, "arguments": {...}}, one or a list, closed by `close`.
std::unique_ptr<ToolCallReader> make_json_call_reader(const ToolOffer& offer, std::string close);
/// NAME <arg_key>K</arg_key> <arg_value>V</arg_value> ..., closed by `close`.
std::unique_ptr<ToolCallReader> make_keyed_call_reader(const ToolOffer& offer, std::string close);
/// call:NAME{key:value,...} with bare keys and strings between <|"|>, closed by `close`.
std::unique_ptr<ToolCallReader> make_gemma_call_reader(const ToolOffer& offer, std::string close);
/// Whichever of the first three the block's beginning says.
std::unique_ptr<ToolCallReader> make_tagged_call_reader(const ToolOffer& offer, std::string close);

/// Calls that a JSON text names, in its own markup or bare (`only_offered`); none when one of its parts isn't a call.
struct NamedArguments {
  std::string name;
  std::string arguments;  // compact JSON text of an object
};
std::vector<NamedArguments> calls_of_json(const nlohmann::ordered_json& json, const ToolOffer& offer,
                                          bool only_offered);

/// Where `text` may begin with `mark`: fully, in part (it ends before the mark does), or not.
enum class MarkMatch { kNo, kPart, kWhole };
MarkMatch match_mark(std::string_view text, std::string_view mark);
std::size_t skip_blanks(std::string_view text, std::size_t position);

}  // namespace tensorfold
