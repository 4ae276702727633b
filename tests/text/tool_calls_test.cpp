// Calls in replies: every form, well written and not, each in every cut into two pieces and byte by byte. What streams
// must add up to what the whole reply says.
#include "text/tool_calls.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "text/messages.h"
#include "text/tool_value.h"

namespace tensorfold {
namespace {

using Json = nlohmann::ordered_json;

std::shared_ptr<const ToolOffer> offer() {
  static const Json tools = parse_tools(Json::parse(R"([
    {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {
      "city": {"type": "string"}, "days": {"type": "integer"}, "exact": {"type": "boolean"}, "tags": {"type": "array"},
      "where": {"type": "object"}, "factor": {"type": "number"}, "either": {"type": ["integer", "null"]}}}}},
    {"name": "Write_File", "input_schema": {"type": "object", "properties": {"path": {"type": "string"},
      "text": {"type": "string"}}}},
    {"type": "function", "function": {"name": "ping"}}])"));
  return std::make_shared<const ToolOffer>(tools);
}

struct Outcome {
  std::string content;
  std::string withheld;
  std::vector<ToolCall> calls;     // as the splitter has them
  std::vector<ToolCall> streamed;  // as the pieces add up
};

void collect(const AnswerPieces& pieces, std::string_view text, Outcome& outcome) {
  outcome.content += pieces.content;
  outcome.withheld += pieces.withheld;
  std::string ranged;
  for (const TextRange& range : pieces.content_ranges) ranged += text.substr(range.begin, range.end - range.begin);
  EXPECT_EQ(ranged, pieces.content) << text;
  for (const ToolCallPiece& piece : pieces.calls) {
    if (!piece.name.empty()) {
      EXPECT_EQ(piece.call, outcome.streamed.size());
      outcome.streamed.push_back({piece.name, ""});
    }
    ASSERT_LT(piece.call, outcome.streamed.size());
    outcome.streamed[piece.call].arguments += piece.arguments;
  }
}

Outcome split(std::string_view text, const std::vector<std::size_t>& cuts, bool complete, bool one_call) {
  ToolCallSplitter splitter(offer(), one_call);
  Outcome outcome;
  std::size_t begin = 0;
  for (const std::size_t cut : cuts) {
    collect(splitter.push(text.substr(begin, cut - begin)), text, outcome);
    begin = cut;
  }
  collect(splitter.push(text.substr(begin)), text, outcome);
  collect(splitter.finish(complete), text, outcome);
  EXPECT_EQ(splitter.decided_bytes(), text.size());
  outcome.calls = splitter.calls();
  return outcome;
}

std::string told(const std::vector<ToolCall>& calls) {
  std::string text;
  for (const ToolCall& call : calls) text += call.name + " " + call.arguments + "\n";
  return text;
}

/// The outcome, which must be the same in every cut.
Outcome split_everyhow(std::string_view text, bool complete = true, bool one_call = false) {
  const Outcome whole = split(text, {}, complete, one_call);
  const auto expect_same = [&](const Outcome& other, const std::string& how) {
    EXPECT_EQ(other.content, whole.content) << how << ": " << text;
    EXPECT_EQ(other.withheld, whole.withheld) << how << ": " << text;
    EXPECT_EQ(told(other.calls), told(whole.calls)) << how << ": " << text;
  };
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    expect_same(split(text, {cut}, complete, one_call), fmt::format("cut at {}", cut));
  }
  std::vector<std::size_t> every;
  for (std::size_t cut = 1; cut < text.size(); ++cut) every.push_back(cut);
  const Outcome bytes = split(text, every, complete, one_call);
  expect_same(bytes, "byte by byte");
  if (whole.withheld.empty()) {
    EXPECT_EQ(told(bytes.streamed), told(whole.calls)) << text;
  }
  for (const ToolCall& call : whole.calls) EXPECT_TRUE(Json::accept(call.arguments)) << call.arguments;
  return whole;
}

struct Case {
  const char* text;
  const char* content;
  const char* calls;
};

void expect_cases(std::initializer_list<Case> cases) {
  for (const Case& test : cases) {
    const Outcome outcome = split_everyhow(test.text);
    EXPECT_EQ(outcome.content, test.content) << test.text;
    EXPECT_EQ(told(outcome.calls), test.calls) << test.text;
    EXPECT_EQ(outcome.withheld, "") << test.text;
  }
}

TEST(ToolCalls, XmlBlocks) {
  expect_cases({
      {"<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>", "",
       "get_weather {\"city\":\"Paris\"}\n"},
      {"Let me look.\n\n<tool_call>\n<function=GET_WEATHER>\n<parameter=city>\nS\xc3\xa3o \"P\"\\\n\n</parameter>\n"
       "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
       "Let me look.", "get_weather {\"city\":\"S\xc3\xa3o \\\"P\\\"\\\\\\n\",\"days\":3}\n"},
      {"<tool_call><function=ping></function></tool_call>\n<tool_call>\n<function=ping>\n</function>\n</tool_call>\n",
       "", "ping {}\nping {}\n"},
      // Two functions of one block.
      {"<tool_call><function=ping></function>\n<function=ping></function></tool_call>", "", "ping {}\nping {}\n"},
      // A closing mark inside a value is text: what follows it isn't the call's.
      {"<tool_call><function=Write_File><parameter=text>\na</parameter> b</parameter>\n</function></tool_call>", "",
       "Write_File {\"text\":\"a</parameter> b\"}\n"},
      {"<tool_call><function=Write_File><parameter=text>\n<tool_call>\n</parameter>\n</function></tool_call>", "",
       "Write_File {\"text\":\"<tool_call>\"}\n"},
      {"<tool_call><function=Write_File><parameter=text></parameter></function></tool_call>", "",
       "Write_File {\"text\":\"\"}\n"},
      {"<tool_call><function=Write_File><parameter=text>\n  two\n\n  lines  \n\n</parameter></function></tool_call>",
       "", "Write_File {\"text\":\"  two\\n\\n  lines  \\n\"}\n"},
      {"<tool_call><function=Write_File><parameter=text>\r\nx\r\n</parameter></function></tool_call>", "",
       "Write_File {\"text\":\"x\"}\n"},
      // An unoffered name goes out under its own, for the client to refuse.
      {"<tool_call><function=rm-rf><parameter=path>\n/\n</parameter></function></tool_call>", "",
       "rm-rf {\"path\":\"/\"}\n"},
      // Missing closing marks of a reply that ended by itself.
      {"<tool_call>\n<function=ping>", "", "ping {}\n"},
      {"<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>", "",
       "get_weather {\"city\":\"Paris\"}\n"},
      {"<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</tool_call> Done.", " Done.",
       "get_weather {\"city\":\"Paris\"}\n"},
      {"<tool_call>\n<function=ping>\n</function> and more", " and more", "ping {}\n"},
  });
}

TEST(ToolCalls, XmlValuesHaveTheirDeclaredTypes) {
  expect_cases({
      {"<tool_call><function=get_weather><parameter=days>\n 12 \n</parameter><parameter=exact>\nTrue\n</parameter>"
       "<parameter=tags>\n['a', (1, 2.5e3), None,]\n</parameter><parameter=where>\n{\"x\": [1, 2\n</parameter>"
       "<parameter=factor>\n1e3\n</parameter></function></tool_call>",
       "",
       "get_weather {\"days\":12,\"exact\":true,\"tags\":[\"a\",[1,2500.0],null],\"where\":{\"x\":[1,2]},"
       "\"factor\":1000.0}\n"},
      // What doesn't fit stays text; unions aren't resolved.
      {"<tool_call><function=get_weather><parameter=days>\nsoon\n</parameter><parameter=exact>\n1\n</parameter>"
       "<parameter=tags>\n[open('x')]\n</parameter><parameter=factor>\n1e999\n</parameter><parameter=either>\n5\n"
       "</parameter><parameter=unknown>\n7\n</parameter></function></tool_call>",
       "",
       "get_weather {\"days\":\"soon\",\"exact\":\"1\",\"tags\":\"[open('x')]\",\"factor\":\"1e999\",\"either\":\"5\","
       "\"unknown\":\"7\"}\n"},
      {"<tool_call><function=get_weather><parameter=days>\n4.0\n</parameter></function></tool_call>", "",
       "get_weather {\"days\":4}\n"},
  });
}

TEST(ToolCalls, JsonBlocks) {
  expect_cases({
      {"<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Par is\", \"days\": [1, "
       "2]}}\n</tool_call>",
       "", "get_weather {\"city\":\"Par is\",\"days\":[1,2]}\n"},
      {"Hm.\n<tool_call>{\"name\": \"ping\", \"arguments\": {}}</tool_call>\n<tool_call>{\"name\": \"PING\", "
       "\"arguments\": {}}</tool_call>",
       "Hm.", "ping {}\nping {}\n"},
      // Other keys, other orders, wrappers, text for arguments.
      {"<tool_call>{\"arguments\": {\"city\": \"x\"}, \"name\": \"get_weather\"}</tool_call>", "",
       "get_weather {\"city\":\"x\"}\n"},
      {"<tool_call>{\"tool\": \"get_weather\", \"parameters\": {\"city\": \"x\"}}</tool_call>", "",
       "get_weather {\"city\":\"x\"}\n"},
      {"<tool_call>{\"function\": \"get_weather\", \"args\": \"{\\\"city\\\": 1}\"}</tool_call>", "",
       "get_weather {\"city\":1}\n"},
      {"<tool_call>{\"name\": \"get_weather\", \"city\": \"x\", \"days\": 2}</tool_call>", "",
       "get_weather {\"city\":\"x\",\"days\":2}\n"},
      {"<tool_call>{\"type\": \"function\", \"function\": {\"name\": \"ping\", \"arguments\": {}}}</tool_call>", "",
       "ping {}\n"},
      {"<tool_call>[{\"name\": \"ping\"}, {\"name\": \"get_weather\", \"arguments\": {\"days\": 1}}]</tool_call>", "",
       "ping {}\nget_weather {\"days\":1}\n"},
      // Slips: a bracket short, a bracket too many, a line end inside a string, a mark inside a string.
      {"<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"x\"}</tool_call>", "",
       "get_weather {\"city\":\"x\"}\n"},
      {"<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"where\": {\"a\": [1, 2</tool_call>", "",
       "get_weather {\"where\":{\"a\":[1,2]}}\n"},
      {"<tool_call>{\"name\": \"ping\", \"arguments\": {}}}\n</tool_call>", "", "ping {}\n"},
      {"<tool_call>{\"name\": \"Write_File\", \"arguments\": {\"text\": \"a\nb </tool_call>\"}}</tool_call>", "",
       "Write_File {\"text\":\"a\\nb </tool_call>\"}\n"},
      {"<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"x\"", "", "get_weather {\"city\":\"x\"}\n"},
      {"<Tool:Tool_Call>{\"name\": \"ping\"}</Tool:Tool_Call>", "", "ping {}\n"},
  });
}

TEST(ToolCalls, OtherForms) {
  expect_cases({
      {"<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>New York</arg_value>\n<arg_key>days</arg_key>\n"
       "<arg_value>2</arg_value>\n</tool_call>",
       "", "get_weather {\"city\":\"New York\",\"days\":2}\n"},
      {"<tool_call>ping</tool_call>", "", "ping {}\n"},
      {"<tool_call>get_weather<arg_key>city</arg_key><arg_value>a </tool_call> b</arg_value></tool_call>", "",
       "get_weather {\"city\":\"a </tool_call> b\"}\n"},
      {"<|tool_call>call:get_weather{city:<|\"|>Rio, "
       "{x}<|\"|>,days:3,exact:true,where:{a:[1,<|\"|>b<|\"|>]}}<tool_call|>",
       "", "get_weather {\"city\":\"Rio, {x}\",\"days\":3,\"exact\":true,\"where\":{\"a\":[1,\"b\"]}}\n"},
      {"<|tool_call>:ping{}<tool_call|>", "", "ping {}\n"},
  });
}

TEST(ToolCalls, BareJson) {
  expect_cases({
      {"{\"name\": \"get_weather\", \"parameters\": {\"city\": \"x\"}}", "", "get_weather {\"city\":\"x\"}\n"},
      {"\n```json\n{\"name\": \"Ping\", \"arguments\": {}}\n```\n", "", "ping {}\n"},
      {"[{\"name\": \"ping\"}, {\"name\": \"ping\"}]", "", "ping {}\nping {}\n"},
      {"{\"name\": \"ping\"}; {\"name\": \"ping\"}", "", "ping {}\nping {}\n"},
      {"{\"name\": \"get_weather\", \"parameters\": {\"city\": \"x\"", "", "get_weather {\"city\":\"x\"}\n"},
      // Unoffered names, other JSON and JSON with prose are answers.
      {"{\"name\": \"Bob\", \"age\": 4}", "{\"name\": \"Bob\", \"age\": 4}", ""},
      {"[1, 2]", "[1, 2]", ""},
      {"{\"name\": \"ping\"} is what I would call.", "{\"name\": \"ping\"} is what I would call.", ""},
      {"{\"name\": \"ping\"}\n\n", "", "ping {}\n"},
      {"```python\nprint(1)\n```", "```python\nprint(1)\n```", ""},
      {"```json\n{\"name\": \"ping\"}\n```\nDone", "```json\n{\"name\": \"ping\"}\n```\nDone", ""},
      {"`ping`", "`ping`", ""},
      {"{", "{", ""},
  });
}

TEST(ToolCalls, WhatIsNoCallStaysText) {
  expect_cases({
      {"", "", ""},
      {" \n", " \n", ""},
      {"plain text with < and <tool and </tool_call> \n", "plain text with < and <tool and </tool_call> \n", ""},
      {"<tool_call>not a call at all</tool_call>", "<tool_call>not a call at all</tool_call>", ""},
      {"<tool_call>{\"name\": 5}</tool_call>", "<tool_call>{\"name\": 5}</tool_call>", ""},
      {"<tool_call>{\"name\": \"get the weather\", \"arguments\": {}}</tool_call>",
       "<tool_call>{\"name\": \"get the weather\", \"arguments\": {}}</tool_call>", ""},
      {"<tool_call><function=></function></tool_call>", "<tool_call><function=></function></tool_call>", ""},
      {"<tool_call> <tool_call><function=ping></function></tool_call>", "<tool_call>", "ping {}\n"},
      {"a <b:tool_calls> c", "a <b:tool_calls> c", ""},
      {"x <tool_call>", "x <tool_call>", ""},
      {"<|tool_call>nothing<tool_call|>", "<|tool_call>nothing<tool_call|>", ""},
  });
}

TEST(ToolCalls, ACutReplyCompletesNothing) {
  for (const char* text : {"<tool_call><function=get_weather><parameter=city>\nPar", "<tool_call><function=ping>",
                           "<tool_call>{\"name\": \"ping\", \"arguments\": {\"a\": 1", "{\"name\": \"ping\", \"a\": 1",
                           "<tool_call>ping", "<|tool_call>call:ping{}"}) {
    const Outcome outcome = split_everyhow(text, false);
    EXPECT_TRUE(outcome.calls.empty()) << text;
    EXPECT_EQ(outcome.content + outcome.withheld, text);
  }
  // A half-written value isn't completed by an end token either.
  for (const char* text : {"<tool_call><function=get_weather><parameter=city>\nPar",
                           "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Par"}) {
    const Outcome outcome = split_everyhow(text, true);
    EXPECT_TRUE(outcome.calls.empty()) << text;
    EXPECT_EQ(outcome.content, "");
    EXPECT_EQ(outcome.withheld, text);
  }
  EXPECT_EQ(told(split_everyhow("<tool_call><function=ping></function>", false).calls), "ping {}\n");
}

TEST(ToolCalls, OneCall) {
  const Outcome outcome = split_everyhow(
      "First <tool_call><function=ping></function></tool_call> then <tool_call>{\"name\": \"ping\"}</tool_call>", true,
      true);
  EXPECT_EQ(outcome.content, "First then");
  EXPECT_EQ(told(outcome.calls), "ping {}\n");
  EXPECT_EQ(told(outcome.streamed), "ping {}\n");
  EXPECT_EQ(split_everyhow("<tool_call><function=get_weather><parameter=city>\nPar", true, true).content,
            "<tool_call><function=get_weather><parameter=city>\nPar");
}

TEST(ToolCalls, ArgumentsStreamAsTheyAreWritten) {
  ToolCallSplitter splitter(offer(), false);
  EXPECT_EQ(splitter.push("<tool_call>\n<function=Write_File>\n").calls.at(0).name, "Write_File");
  EXPECT_EQ(splitter.push("<parameter=text>\nline").calls.at(0).arguments, "\"text\":\"line");
  EXPECT_EQ(splitter.push(" one\nline").calls.at(0).arguments, " one\\nline");
  EXPECT_TRUE(splitter.push("\n").calls.empty());  // may frame the value
  EXPECT_TRUE(splitter.push("</parameter>").calls.empty());
  EXPECT_EQ(splitter.push("\n</function>\n</tool_call>").calls.at(0).arguments, "\"}");
  ToolCallSplitter hermes(offer(), false);
  EXPECT_EQ(hermes.push("<tool_call>\n{\"name\": \"Write_File\", \"arguments\": {\"te").calls.at(0).arguments, "{\"te");
  EXPECT_EQ(hermes.push("xt\": \"a").calls.at(0).arguments, "xt\":\"a");
}

TEST(ToolCalls, LongAndDeepRepliesAreReadInBoundedTime) {
  std::string deep = "<tool_call>{\"name\": \"ping\", \"arguments\": {\"a\": ";
  for (int i = 0; i < 100'000; ++i) deep += "[";
  Outcome outcome = split(deep, {}, true, false);
  EXPECT_TRUE(outcome.calls.empty());
  std::string bare = "{\"a\": \"";
  std::string xml = "<tool_call><function=Write_File><parameter=text>\n";
  for (int i = 0; i < 40'000; ++i) {
    bare += "<word> ";
    xml += "</parameter> ";
  }
  std::string broken, nested;  // each mark opens a block that breaks, at once or by what follows
  for (int i = 0; i < 30'000; ++i) {
    broken += "<tool_call>no call</tool_call>\n";
    nested += "<tool_call>{\"name\": ";
  }
  for (const std::string& text : {bare, xml, broken, nested}) {
    std::vector<std::size_t> cuts;
    for (std::size_t cut = 5; cut < text.size(); cut += 5) cuts.push_back(cut);
    outcome = split(text, cuts, false, false);
    EXPECT_EQ(outcome.content + outcome.withheld, text);
  }
}

}  // namespace
}  // namespace tensorfold
