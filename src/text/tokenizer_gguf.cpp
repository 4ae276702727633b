// Tokenizers from a GGUF file's metadata. The file names its pre-tokenizer instead of describing it; the patterns for
// each name are those of the models' own tokenizer.json.
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/limits.h"
#include "text/bpe.h"
#include "text/bpe_scores.h"
#include "text/pretokenizer_scanner.h"
#include "text/tokenizer_pipeline.h"

namespace tensorfold {
namespace {

constexpr std::string_view kNumber = R"(\p{N})";
constexpr std::string_view kLineBreak = "[\r\n]";
constexpr std::string_view kDeepseekLetters =
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-"
    "Ὅὐ-"
    "ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-"
    "Ｚａ-"
    "ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
constexpr std::string_view kDeepseekPunctuation = "\\s?[!-/:-~！-／：-～‘-‟　-。]+";
constexpr std::string_view kDeepseekEastAsian = "[一-龥ࠀ-一가-퟿]+";
constexpr std::string_view kBailing =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr std::string_view kSeedCoder =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct PreType {
  std::vector<std::string_view> names;
  std::vector<std::string_view> patterns;
  bool ignore_merges = false;
  bool add_bos = false;
  bool normal_form_c = false;
};

const std::vector<PreType>& pre_types() {
  using namespace patterns;
  static const std::vector<PreType> types = {
      {{"default", ""}, {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
      {{"gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "gigachat", "modern-bert", "mellum",
        "exaone4", "a.x-4.0", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "jina-v2-code", "roberta-bpe"},
       {kGpt2}},
      {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}, {kNumber, kGpt2}},
      {{"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"},
       {kLlama3},
       true,
       true},
      {{"dbrx", "smaug-bpe", "chatglm-bpe"}, {kLlama3}},
      {{"glm4"}, {kLlama3}, true},
      {{"qwen2", "deepseek-r1-qwen", "megrez"}, {kQwen2}, false, false, true},
      {{"stablelm2", "hunyuan", "grok-2"}, {kQwen2}},
      {{"qwen35", "qwen3.5"}, {kQwen35}},
      {{"deepseek-llm"},
       {kLineBreak, kDeepseekLetters, kDeepseekPunctuation, R"(\s+$)", kDeepseekEastAsian, R"(\p{N}+)"}},
      {{"deepseek-coder"}, {kLineBreak, R"(\s?\p{L}+)", R"(\s?\p{P}+)", kDeepseekEastAsian, kNumber}},
      {{"deepseek-v3", "hunyuan-dense"}, {kDeepseekNumbers, kDeepseekCjk, kDeepseekWords}},
      {{"falcon"}, {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2, "[0-9][0-9][0-9]"}},
      {{"tekken"}, {kTekken}, true, true},
      {{"gpt-4o", "llama4", "kanana2"}, {kO200k}, true},
      {{"bailingmoe", "bailingmoe2", "llada-moe"}, {kBailing}},
      {{"seed-coder"}, {kSeedCoder}},
  };
  return types;
}

const PreType& find_pre_type(const std::string& name) {
  for (const PreType& type : pre_types()) {
    for (const std::string_view known : type.names) {
      if (known == name) return type;
    }
  }
  fail(ErrorCode::kInvalidCheckpoint, "GGUF: the pre-tokenizer '{}' (tokenizer.ggml.pre) isn't supported", name);
}

enum TokenType : std::int32_t { kUnknownType = 2, kControlType = 3, kUserDefinedType = 4 };

void check_id(const GgufVocabulary& vocabulary, std::int32_t id, const char* name) {
  if (id >= -1 && (id == -1 || static_cast<std::size_t>(id) < vocabulary.tokens.size())) return;
  fail(ErrorCode::kInvalidCheckpoint, "GGUF: {} is {}, outside the vocabulary of {} tokens", name, id,
       vocabulary.tokens.size());
}

void check(const GgufVocabulary& vocabulary) {
  const std::size_t count = vocabulary.tokens.size();
  if (count == 0 || count > static_cast<std::size_t>(limits::kVocabularySizeMax)) {
    fail(ErrorCode::kInvalidCheckpoint, "GGUF: tokenizer.ggml.tokens has {} entries, not 1..{}", count,
         limits::kVocabularySizeMax);
  }
  if (!vocabulary.token_types.empty() && vocabulary.token_types.size() != count) {
    fail(ErrorCode::kInvalidCheckpoint, "GGUF: tokenizer.ggml.token_type has {} entries for {} tokens",
         vocabulary.token_types.size(), count);
  }
  check_id(vocabulary, vocabulary.bos_token, "bos_token_id");
  check_id(vocabulary, vocabulary.eos_token, "eos_token_id");
  check_id(vocabulary, vocabulary.unknown_token, "unknown_token_id");
  check_id(vocabulary, vocabulary.padding_token, "padding_token_id");
}

void read_tokens(const GgufVocabulary& vocabulary, TokenizerParts& parts) {
  parts.vocabulary->reserve(vocabulary.tokens.size());
  for (std::size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    parts.vocabulary->add(unicode::to_valid_utf8(vocabulary.tokens[i]), static_cast<std::int64_t>(i));
  }
  parts.vocabulary->finish(true);
  for (std::size_t i = 0; i < vocabulary.token_types.size(); ++i) {
    const std::int32_t type = vocabulary.token_types[i];
    if (type != kControlType && type != kUserDefinedType && type != kUnknownType) continue;
    AddedToken token;
    token.id = static_cast<std::int32_t>(i);
    token.content = parts.vocabulary->text(token.id);
    token.special = type != kUserDefinedType;
    parts.added_tokens.push_back(std::move(token));
  }
}

void set_special_tokens(const GgufVocabulary& vocabulary, bool add_bos_default, TokenizerParts& parts) {
  const auto set = [&](const char* name, std::int32_t id) -> std::optional<std::int32_t> {
    if (id < 0) return std::nullopt;
    parts.special_texts[name] = parts.vocabulary->text(id);
    return id;
  };
  parts.bos_token = set("bos_token", vocabulary.bos_token);
  parts.eos_token = set("eos_token", vocabulary.eos_token);
  set("unk_token", vocabulary.unknown_token);
  set("pad_token", vocabulary.padding_token);
  if (vocabulary.add_bos_token.value_or(add_bos_default) && parts.bos_token) parts.prefix.push_back(*parts.bos_token);
  if (vocabulary.add_eos_token.value_or(false) && parts.eos_token) parts.suffix.push_back(*parts.eos_token);
}

TokenizerParts read_merges_model(GgufVocabulary& vocabulary) {
  const PreType& type = find_pre_type(vocabulary.pre);
  TokenizerParts parts;
  read_tokens(vocabulary, parts);
  std::vector<std::pair<std::string, std::string>> merges;
  merges.reserve(vocabulary.merges.size());
  for (const std::string& merge : vocabulary.merges) {
    const std::size_t space = merge.find(' ', 1);
    if (space == merge.npos || !unicode::is_valid_utf8(merge)) {
      fail(ErrorCode::kInvalidCheckpoint, "GGUF: the merge '{}' isn't two parts separated by a space",
           unicode::to_valid_utf8(merge));
    }
    merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
  BpeOptions options;
  options.ignore_merges = type.ignore_merges;
  options.unknown_token = vocabulary.unknown_token;
  parts.unknown_token = vocabulary.unknown_token;
  parts.model = make_bpe_model(*parts.vocabulary, merges, std::move(options));
  if (type.normal_form_c) parts.normalizer = Normalizer::normal_form(unicode::NormalForm::kNfc);
  parts.pre_tokenizer = PreTokenizerChain::byte_level(type.patterns);
  parts.decoder = Decoder::byte_level();
  set_special_tokens(vocabulary, type.add_bos, parts);
  return parts;
}

// Gemma's runs of spaces, tabs and line breaks are user-defined tokens that the converter writes with plain spaces and
// the lowest score. The model's own tokenizer merges them before anything else, the longest first, also in message
// text: so they get the spelling of the normalized text and scores above all others.
void raise_white_space_tokens(GgufVocabulary& vocabulary) {
  constexpr float kAboveAllScores = 1e6F;
  for (std::size_t i = 0; i < vocabulary.token_types.size(); ++i) {
    std::string& text = vocabulary.tokens[i];
    if (vocabulary.token_types[i] != kUserDefinedType || text.empty()) continue;
    if (text.find_first_not_of(text[0]) != text.npos ||
        std::string_view(" \t\n\r").find(text[0]) == std::string::npos) {
      continue;
    }
    vocabulary.scores[i] = kAboveAllScores + static_cast<float>(text.size());
    if (text[0] != ' ') continue;
    std::string escaped;
    for (std::size_t k = 0; k < text.size(); ++k) escaped += "\u2581";
    text = std::move(escaped);
  }
}

TokenizerParts read_scores_model(GgufVocabulary& vocabulary) {
  if (vocabulary.scores.size() != vocabulary.tokens.size()) {
    fail(ErrorCode::kInvalidCheckpoint, "GGUF: tokenizer.ggml.scores has {} entries for {} tokens",
         vocabulary.scores.size(), vocabulary.tokens.size());
  }
  for (std::size_t i = 0; i < vocabulary.scores.size(); ++i) {
    if (std::isnan(vocabulary.scores[i])) fail(ErrorCode::kInvalidCheckpoint, "GGUF: the score of token {} is NaN", i);
  }
  raise_white_space_tokens(vocabulary);
  TokenizerParts parts;
  read_tokens(vocabulary, parts);
  const bool add_space_prefix = vocabulary.add_space_prefix.value_or(true);
  parts.unknown_token = vocabulary.unknown_token;
  parts.model = make_score_model(*parts.vocabulary, std::move(vocabulary.scores), vocabulary.unknown_token);
  parts.normalizer = Normalizer::escaped_spaces(add_space_prefix);
  parts.decoder = Decoder::sentencepiece(add_space_prefix);
  set_special_tokens(vocabulary, true, parts);
  return parts;
}

nlohmann::ordered_json pre_tokenizer_json(const PreType& type) {
  nlohmann::ordered_json parts = nlohmann::ordered_json::array();
  for (const std::string_view pattern : type.patterns) {
    parts.push_back({{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
  }
  parts.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}});
  return {{"type", "Sequence"}, {"pretokenizers", parts}};
}

nlohmann::ordered_json added_tokens_json(const GgufVocabulary& vocabulary) {
  nlohmann::ordered_json added = nlohmann::ordered_json::array();
  for (std::size_t id = 0; id < vocabulary.token_types.size(); ++id) {
    const std::int32_t type = vocabulary.token_types[id];
    if (type != kControlType && type != kUserDefinedType && type != kUnknownType) continue;
    added.push_back({{"id", id},
                     {"content", unicode::to_valid_utf8(vocabulary.tokens[id])},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", type != kUserDefinedType}});
  }
  return added;
}

}  // namespace

std::string gguf_tokenizer_json(const GgufVocabulary& vocabulary) {
  check(vocabulary);
  if (vocabulary.model != "gpt2") {
    fail(ErrorCode::kUnsupported, "GGUF: a tokenizer of the model '{}' can't be written as tokenizer.json", vocabulary.model);
  }
  const PreType& type = find_pre_type(vocabulary.pre);
  nlohmann::json entries = nlohmann::json::object();  // sorted by text: large objects of the other kind search linearly
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (!entries.emplace(unicode::to_valid_utf8(vocabulary.tokens[id]), id).second) {
      fail(ErrorCode::kInvalidCheckpoint, "GGUF: the token {} is in the vocabulary twice", id);
    }
  }
  nlohmann::json merges = nlohmann::json::array();
  for (const std::string& merge : vocabulary.merges) merges.push_back(unicode::to_valid_utf8(merge));
  nlohmann::ordered_json document{{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
  document["added_tokens"] = added_tokens_json(vocabulary);
  document["normalizer"] = type.normal_form_c ? nlohmann::ordered_json{{"type", "NFC"}} : nlohmann::ordered_json();
  document["pre_tokenizer"] = pre_tokenizer_json(type);
  document["post_processor"] = nullptr;
  document["decoder"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
  document["model"] = {{"type", "BPE"},          {"dropout", nullptr},       {"unk_token", nullptr},
                       {"continuing_subword_prefix", nullptr}, {"end_of_word_suffix", nullptr}, {"fuse_unk", false},
                       {"byte_fallback", false}, {"ignore_merges", type.ignore_merges}};
  document["model"]["vocab"] = std::move(entries);
  document["model"]["merges"] = std::move(merges);
  return document.dump() + "\n";
}

std::shared_ptr<const Tokenizer> Tokenizer::from_gguf(GgufVocabulary vocabulary) {
  check(vocabulary);
  if (vocabulary.model == "gpt2") return std::make_shared<TokenizerPipeline>(read_merges_model(vocabulary));
  if (vocabulary.model == "llama") return std::make_shared<TokenizerPipeline>(read_scores_model(vocabulary));
  fail(ErrorCode::kInvalidCheckpoint, "GGUF: the tokenizer model '{}' (tokenizer.ggml.model) isn't supported",
       vocabulary.model);
}

}  // namespace tensorfold
