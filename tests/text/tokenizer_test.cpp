// Tokenizer rules on vocabularies small enough to read: refusals by name, message text that spells control tokens,
// segments, GGUF vocabularies, streaming, general patterns against the hand-written scanners, long words.
#include "text/tokenizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "base/limits.h"
#include "text/pretokenizer.h"
#include "text/pretokenizer_scanner.h"
#include "text/tokenizer_regex.h"
#include "text/unicode.h"

namespace tensorfold {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;

// Bytes 0..255 as the package spells them, then a few words and one special token that merges can also reach.
json byte_level_document() {
  json vocabulary = json::object();
  for (int b = 0; b < 256; ++b) vocabulary[byte_level_character(static_cast<unsigned char>(b))] = b;
  vocabulary["he"] = 256;
  vocabulary["ll"] = 257;
  vocabulary["llo"] = 258;
  vocabulary["<s"] = 259;
  vocabulary["<s>"] = 260;
  return {{"version", "1.0"},
          {"added_tokens",
           {{{"id", 260}, {"content", "<s>"}, {"special", true}, {"normalized", false}},
            {{"id", 261}, {"content", "<tool>"}, {"special", false}, {"normalized", true}}}},
          {"normalizer", {{"type", "NFC"}}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", {"h e", "l l", "ll o", "< s", "<s >"}}}}};
}

void expect_refused(const json& document, std::string_view part, std::string_view config = "") {
  try {
    Tokenizer::from_json(document.dump(), config);
    ADD_FAILURE() << "not refused: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidCheckpoint);
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(Tokenizer, MergesAndAddedTokens) {
  const auto tokenizer = Tokenizer::from_json(byte_level_document().dump(), "");
  EXPECT_EQ(tokenizer->encode("hello", {}), (Ids{256, 258}));
  EXPECT_EQ(tokenizer->encode("<s>hello<tool>", {}), (Ids{260, 256, 258, 261}));
  EXPECT_EQ(tokenizer->decode(Ids{260, 256, 258, 261}, true), "hello<tool>");
  EXPECT_EQ(tokenizer->size(), 262);
}

TEST(Tokenizer, MessageTextNeverBecomesAControlToken) {
  const auto tokenizer = Tokenizer::from_json(byte_level_document().dump(), "");
  EXPECT_EQ(tokenizer->encode("<s>", {.parse_added_tokens = false}), (Ids{259, '>'}));
  const std::vector<PromptSegment> segments = {{"<s>", true}, {"<s><tool>", false}, {"<tool>", true}};
  const Ids ids = tokenizer->encode_segments(segments);
  EXPECT_EQ(ids, (Ids{260, 259, '>', '<', 't', 'o', 'o', 'l', '>', 261}));
  // A token put together from both sides of a boundary isn't one.
  EXPECT_EQ(tokenizer->encode_segments(std::vector<PromptSegment>{{"<to", false}, {"ol>", true}}),
            (Ids{'<', 't', 'o', 'o', 'l', '>'}));
  // Also where the message ends in a letter that would compose with what follows.
  const Ids marked = tokenizer->encode_segments(std::vector<PromptSegment>{{"<tool>e", false}, {"\u0301<tool>", true}});
  EXPECT_EQ(std::count(marked.begin(), marked.end(), 261), 1);
  EXPECT_EQ(marked.back(), 261);
}

TEST(Tokenizer, FilesThatWereCutSayWhichAndWhatToDo) {
  const std::string whole = byte_level_document().dump();
  const auto message = [](std::string_view tokenizer, std::string_view config) -> std::string {
    try {
      Tokenizer::from_json(tokenizer, config);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  for (const std::string& text : {std::string(), std::string("\n"), whole.substr(0, whole.size() / 2), whole + "}"}) {
    const std::string told = message(text, "");
    EXPECT_EQ(told.find("tokenizer.json: "), 0u) << told;
    EXPECT_NE(told.find("download"), std::string::npos) << told;
    EXPECT_EQ(told.find("json.exception"), std::string::npos) << told;
  }
  for (const char* config : {"{\"add_bos_token\": tr", " ", "[]"}) {
    const std::string told = message(whole, config);
    EXPECT_EQ(told.find("tokenizer_config.json: "), 0u) << told;
    EXPECT_NE(told.find("download the file again"), std::string::npos) << told;
    EXPECT_EQ(told.find("json.exception"), std::string::npos) << told;
  }
}

TEST(Tokenizer, RefusesByName) {
  json document = byte_level_document();
  document["model"]["merges"].push_back("x yz");
  expect_refused(document, "'yz', which isn't in the vocabulary");
  document = byte_level_document();
  document["model"]["vocab"]["twice"] = 256;
  expect_refused(document, "have the same id 256");
  document = byte_level_document();
  document["added_tokens"][1]["id"] = 5000;
  expect_refused(document, "outside the vocabulary");
  document = byte_level_document();
  document["added_tokens"][1]["id"] = 7;
  expect_refused(document, "also another token's");
  document = byte_level_document();
  document["post_processor"] = {{"type", "TemplateProcessing"},
                                {"single", {{{"SpecialToken", {{"id", "X"}}}}, {{"Sequence", {{"id", "A"}}}}}},
                                {"special_tokens", {{"X", {{"ids", {9999}}}}}}};
  expect_refused(document, "outside the vocabulary");
  for (const char* component : {"normalizer", "pre_tokenizer", "post_processor", "decoder"}) {
    document = byte_level_document();
    document[component] = {{"type", "Mystery"}};
    expect_refused(document, "'Mystery' isn't supported");
  }
  document = byte_level_document();
  document["model"]["type"] = "WordPiece";
  expect_refused(document, "'WordPiece' isn't supported");
  document = byte_level_document();
  document["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "(("}}}, {"behavior", "Isolated"}};
  expect_refused(document, "can't be compiled");
  document = byte_level_document();
  for (int i = 0; i < 80; ++i) document["decoder"] = {{"type", "Sequence"}, {"decoders", {document["decoder"]}}};
  expect_refused(document, "decoders");
  EXPECT_THROW(Tokenizer::from_json("{\"model\": ", ""), Error);
  EXPECT_THROW(Tokenizer::from_json(std::string(100'000, '['), ""), Error);
  EXPECT_THROW(Tokenizer::from_json(byte_level_document().dump(), std::string(100'000, '[')), Error);
}

TEST(Tokenizer, InvalidBytesAndOversizedText) {
  const auto tokenizer = Tokenizer::from_json(byte_level_document().dump(), "");
  EXPECT_EQ(tokenizer->encode("a\xE2\x82z\xED\xA0\x80", {}), tokenizer->encode("a\uFFFDz\uFFFD\uFFFD\uFFFD", {}));
  try {
    tokenizer->encode(std::string(limits::kEncodeTextBytesMax + 1, 'a'), {});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
  }
}

TEST(Tokenizer, ConfigGivesSpecialTextsAndTemplates) {
  const auto tokenizer = Tokenizer::from_json(byte_level_document().dump(),
                                              R"({"bos_token": {"content": "<s>"}, "add_bos_token": true,
          "chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]})");
  EXPECT_EQ(tokenizer->bos_token(), 260);
  EXPECT_EQ(tokenizer->special_text("bos_token"), "<s>");
  EXPECT_EQ(tokenizer->special_text("eos_token"), "");
  EXPECT_EQ(tokenizer->chat_template(), "a");
  EXPECT_EQ(tokenizer->chat_template("tool_use"), "b");
  EXPECT_EQ(tokenizer->encode("he", {.add_special_tokens = true}), (Ids{260, 256}));
}

TEST(Tokenizer, LongWordsTakeLittleMoreThanLinearTime) {
  const auto tokenizer = Tokenizer::from_json(byte_level_document().dump(), "");
  std::string word;
  for (int i = 0; i < 200'000; ++i) word += "hello"[i % 5];
  const std::clock_t begin = std::clock();  // of this process alone, however busy the machine is
  const auto seconds = [begin] { return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC; };
  EXPECT_EQ(tokenizer->encode(word, {}).size(), 80'000u);
  EXPECT_LT(seconds(), 5.0);
  // An endless run of combining marks of two classes, too.
  std::string marks = "a";
  for (int i = 0; i < 100'000; ++i) marks += i % 2 == 0 ? "\u0301" : "\u0323";
  EXPECT_GT(tokenizer->encode(marks, {}).size(), 0u);
  EXPECT_LT(seconds(), 10.0);
}

// One merge list over few letters, so that every order of merging is met.
json blanks_document() {
  json document = byte_level_document();
  json& model = document["model"];
  std::int32_t id = 262;
  const auto merge = [&](const std::string& left, const std::string& right) {
    model["merges"].push_back(left + " " + right);
    if (!model["vocab"].contains(left + right)) model["vocab"][left + right] = id++;
  };
  std::string blanks = "\u0120";
  for (int i = 0; i < 7; ++i, blanks += blanks) merge(blanks, blanks);
  merge("\u0120\u0120", "\u0120");
  merge("\u0120", "h");
  merge("\u0120h", "e");
  merge("e", "\u0120");
  return document;
}

/// The definition: of all pairs the one of the lowest rank, the leftmost of them, until there is none.
Ids merged_naively(const json& document, std::string_view text) {
  std::map<std::pair<std::string, std::string>, std::size_t> ranks;
  for (const json& merge : document["model"]["merges"]) {
    const std::string both = merge.get<std::string>();
    const std::size_t space = both.find(' ');
    ranks[{both.substr(0, space), both.substr(space + 1)}] = ranks.size();
  }
  std::vector<std::string> symbols;
  for (const char c : text) symbols.push_back(byte_level_character(static_cast<unsigned char>(c)));
  for (;;) {
    std::size_t best = symbols.size(), best_rank = ranks.size();
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = ranks.find({symbols[i], symbols[i + 1]});
      if (found != ranks.end() && found->second < best_rank) best = i, best_rank = found->second;
    }
    if (best == symbols.size()) break;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  Ids ids;
  for (const std::string& symbol : symbols) ids.push_back(document["model"]["vocab"][symbol].get<std::int32_t>());
  return ids;
}

TEST(Tokenizer, LongPiecesMergeInTheOrderOfRanks) {
  const json document = blanks_document();
  const auto tokenizer = Tokenizer::from_json(document.dump(), "");
  std::minstd_rand random(7);
  for (int round = 0; round < 200; ++round) {
    std::string text;
    const std::size_t size = 49 + random() % 150;
    while (text.size() < size) text.append(1 + random() % 40, "  heloe "[random() % 8]);
    EXPECT_EQ(tokenizer->encode(text, {}), merged_naively(document, text)) << text;
  }
  // Linear: through one heap these took 20 times as long for each blank as a short run.
  const std::clock_t begin = std::clock();
  const std::int32_t longest = tokenizer->encode(std::string(128, ' '), {}).front();
  EXPECT_EQ(tokenizer->encode(std::string(4u << 20, ' '), {}), Ids((4u << 20) / 128, longest));
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 5.0);
}

TEST(Tokenizer, GivesUpOnATextThatIsCertainlyTooLong) {
  const auto tokenizer = Tokenizer::from_json(blanks_document().dump(), "");
  const auto count_min = [&tokenizer](std::string_view text, std::size_t tokens_max) -> std::size_t {
    try {
      EXPECT_LE(tokenizer->encode(text, {.tokens_max = tokens_max}).size(), tokens_max) << text.substr(0, 20);
    } catch (const TooManyTokens& error) {
      return error.tokens_min();
    }
    return 0;
  };
  const std::string blanks(12u << 20, ' ');
  const std::size_t fewest = blanks.size() / 128;
  EXPECT_EQ(tokenizer->encode(blanks, {}).size(), fewest);
  EXPECT_EQ(count_min(blanks, fewest), 0u) << "it fits";
  const std::clock_t begin = std::clock();
  EXPECT_EQ(count_min(blanks, fewest - 1), fewest);
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 0.5) << "without merging anything";
  const std::vector<PromptSegment> segments = {{"<tool>", true}, {blanks, false}};
  EXPECT_THROW(tokenizer->encode_segments(segments, 1000), TooManyTokens);
  EXPECT_EQ(tokenizer->encode_segments(segments, fewest + 1).size(), fewest + 1);
}

TEST(Tokenizer, GivesUpOnManyPiecesAndNotWhereTextIsDropped) {
  json document = byte_level_document();
  document["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  const auto words = Tokenizer::from_json(document.dump(), "");
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "x ";
  const std::size_t count = words->encode(text, {}).size();
  EXPECT_EQ(words->encode(text, {.tokens_max = count}).size(), count);
  EXPECT_THROW(words->encode(text, {.tokens_max = 100}), TooManyTokens);
  // Without byte tokens, and with no unknown token, characters outside the vocabulary vanish.
  json dropping = document;
  dropping["model"]["vocab"].erase("x");
  const auto dropper = Tokenizer::from_json(dropping.dump(), "");
  EXPECT_TRUE(dropper->encode(std::string(5000, 'x'), {.tokens_max = 1}).empty());
}

GgufVocabulary score_vocabulary() {
  GgufVocabulary vocabulary;
  vocabulary.model = "llama";
  vocabulary.tokens = {"<unk>", "<s>", "</s>"};
  vocabulary.token_types = {2, 3, 3};
  vocabulary.scores = {0, 0, 0};
  const auto add = [&](std::string text, float score, std::int32_t type) {
    vocabulary.tokens.push_back(std::move(text));
    vocabulary.scores.push_back(score);
    vocabulary.token_types.push_back(type);
  };
  for (int b = 0; b < 256; ++b) add(fmt::format("<0x{:02X}>", b), 0, 6);  // 3..258
  add("\u2581", -1, 1);                                                   // 259
  add("a", -2, 1);                                                        // 260
  add("b", -3, 1);                                                        // 261
  add("ab", -4, 1);                                                       // 262
  add("\u2581a", -5, 1);                                                  // 263
  add("<tool>", -1000, 4);                                                // 264
  vocabulary.bos_token = 1;
  vocabulary.eos_token = 2;
  vocabulary.unknown_token = 0;
  return vocabulary;
}

TEST(TokenizerGguf, ScoresBytesAndSpaces) {
  const auto tokenizer = Tokenizer::from_gguf(score_vocabulary());
  EXPECT_EQ(tokenizer->encode("ab a", {.add_special_tokens = true}), (Ids{1, 259, 262, 263}));
  EXPECT_EQ(tokenizer->encode("<s>\u20ac", {}), (Ids{1, 259, 3 + 0xE2, 3 + 0x82, 3 + 0xAC}));
  EXPECT_EQ(tokenizer->decode(Ids{259, 262, 263}, false), "ab a");
  EXPECT_EQ(tokenizer->decode(Ids{259, 3 + 0xE2, 3 + 0x82, 260}, false), "\uFFFD\uFFFDa");
  EXPECT_EQ(tokenizer->token_bytes(3 + 0xE2), "\xE2");
  EXPECT_EQ(tokenizer->token_bytes(263), " a");
  EXPECT_EQ(tokenizer->encode("<tool>", {}), (Ids{264}));
  const Ids message = tokenizer->encode("<tool><s>", {.parse_added_tokens = false});
  EXPECT_EQ(std::count(message.begin(), message.end(), 264) + std::count(message.begin(), message.end(), 1), 0);
}

TEST(TokenizerGguf, RunsOfSpacesMergeBeforeWords) {
  GgufVocabulary vocabulary = score_vocabulary();
  vocabulary.tokens.insert(vocabulary.tokens.end(), {"  ", "   "});  // 265, 266, as converters write them
  vocabulary.scores.insert(vocabulary.scores.end(), {-1000, -1000});
  vocabulary.token_types.insert(vocabulary.token_types.end(), {4, 4});
  vocabulary.add_space_prefix = false;
  const auto tokenizer = Tokenizer::from_gguf(vocabulary);
  for (const bool control : {false, true}) {
    EXPECT_EQ(tokenizer->encode("b   a  b", {.parse_added_tokens = control}), (Ids{261, 266, 260, 265, 261}));
  }
  EXPECT_EQ(tokenizer->decode(Ids{261, 266, 260}, false), "b   a");
}

TEST(TokenizerGguf, RefusesByName) {
  GgufVocabulary vocabulary = score_vocabulary();
  vocabulary.bos_token = 265;
  EXPECT_THROW(Tokenizer::from_gguf(vocabulary), Error);
  vocabulary = score_vocabulary();
  vocabulary.scores.pop_back();
  EXPECT_THROW(Tokenizer::from_gguf(vocabulary), Error);
  vocabulary = score_vocabulary();
  vocabulary.model = "bert";
  EXPECT_THROW(Tokenizer::from_gguf(vocabulary), Error);
  vocabulary = score_vocabulary();
  vocabulary.model = "gpt2";
  vocabulary.pre = "mystery";
  EXPECT_THROW(Tokenizer::from_gguf(vocabulary), Error);
  vocabulary.pre = "gpt-2";
  vocabulary.merges = {"a zz"};
  EXPECT_THROW(Tokenizer::from_gguf(vocabulary), Error);
}

TEST(StreamDecoder, EqualsDecodeAndHoldsBackUnfinishedCharacters) {
  const auto scores = Tokenizer::from_gguf(score_vocabulary());
  StreamDecoder first(scores, false);
  EXPECT_EQ(first.push(259), "");  // the space that encoding put in front
  EXPECT_EQ(first.push(3 + 0xE2), "");
  EXPECT_EQ(first.push(3 + 0x82), "");
  EXPECT_EQ(first.push(3 + 0xAC), "");  // another byte would make all of the run U+FFFD
  EXPECT_EQ(first.push(260),
            "\u20ac"
            "a");
  EXPECT_EQ(first.finish(), "");
  const auto bytes = Tokenizer::from_json(byte_level_document().dump(), "");
  StreamDecoder second(bytes, true);
  EXPECT_EQ(second.push(0xE2), "");
  EXPECT_EQ(second.push(0x82), "");
  EXPECT_EQ(second.push(0xAC), "\u20ac");
  EXPECT_EQ(second.push(260), "");
  EXPECT_EQ(second.push(0xF0), "");
  EXPECT_EQ(second.finish(), "\uFFFD");
}

// The scanners against PCRE2 on the same patterns: random characters from the classes that the patterns tell apart.
TEST(PreTokenizer, ScannersEqualTheirPatterns) {
  const char* alphabet[] = {"a",  "B",      "\u01c5", "\u02b0", "\u4e2d", "\u0301", "1",  "\u00b2", " ",      " ",
                            "\n", "\r",     "\t",     "\u00a0", "'",      "s",      "LL", "re",     "/",      "!",
                            "$",  "\u20ac", "\u017f", "\u0001", "\u3042", "\u200d", "V",  "e",      "\u180e", "9"};
  std::uint32_t state = 1;
  const auto next = [&](std::uint32_t count) {
    state = state * 1664525 + 1013904223;
    return (state >> 8) % count;
  };
  using namespace patterns;
  for (const std::string_view pattern :
       {kGpt2, kLlama3, kQwen2, kQwen35, kO200k, kTekken, kDeepseekNumbers, kDeepseekCjk, kDeepseekWords}) {
    const auto scanner = make_scanner(pattern);
    const auto regex = TextPattern::regex(std::string(pattern));
    ASSERT_NE(scanner, nullptr);
    for (int round = 0; round < 4000; ++round) {
      std::string text;
      for (std::uint32_t i = 1 + next(14); i > 0; --i) text += alphabet[next(std::size(alphabet))];
      std::vector<TextRange> matches;
      regex->find_all(text, matches);
      std::size_t k = 0;
      for (const char *p = text.data(), *end = p + text.size(); p < end;) {
        const char* match_end = scanner->match(p, end);
        if (match_end == p) {
          p += unicode::valid_length(*p);
          continue;
        }
        ASSERT_LT(k, matches.size()) << pattern << " on " << json(text).dump();
        ASSERT_EQ(static_cast<std::size_t>(p - text.data()), matches[k].begin)
            << pattern << " on " << json(text).dump();
        ASSERT_EQ(static_cast<std::size_t>(match_end - text.data()), matches[k].end)
            << pattern << " on " << json(text).dump();
        ++k;
        p = match_end;
      }
      ASSERT_EQ(k, matches.size()) << pattern << " on " << json(text).dump();
    }
  }
}

}  // namespace
}  // namespace tensorfold
