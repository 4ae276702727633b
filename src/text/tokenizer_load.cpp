// Tokenizers from tokenizer.json and tokenizer_config.json: reads every component and refuses by name what it can't
// honour.
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/limits.h"
#include "text/bpe.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_pipeline.h"

namespace tensorfold {
namespace {

using nlohmann::json;

const json& member_or_null(const json& object, const char* key) {
  static const json kNull;
  const auto found = object.find(key);
  return found != object.end() ? *found : kNull;
}

void check_model_type(const json& model, bool has_merges) {
  const std::string type = json_string_or_empty(model, "type");
  if (type.empty() && has_merges) return;  // files from before types were written
  if (type != "BPE") {
    fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: the model type '{}' isn't supported (BPE is)", type);
  }
  const json& dropout = member_or_null(model, "dropout");
  if (dropout.is_number() && dropout.get<double>() != 0) {
    fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: model.dropout {} makes ids random; set it to null",
         dropout.get<double>());
  }
}

void read_model(TokenizerDocument& document, TokenizerParts& parts) {
  const json& model = json_member(document.rest, "model", "the file");
  if (!model.is_object()) fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: model isn't an object");
  check_model_type(model, !document.merges.empty());
  parts.vocabulary->reserve(document.vocabulary.size());
  for (auto& [text, id] : document.vocabulary) parts.vocabulary->add(std::move(text), id);
  parts.vocabulary->finish(false);
  if (parts.vocabulary->entry_count() == 0) {
    fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: model.vocab is absent or empty");
  }
  BpeOptions options;
  options.byte_fallback = json_bool(model, "byte_fallback", false);
  options.fuse_unknown = json_bool(model, "fuse_unk", false);
  options.ignore_merges = json_bool(model, "ignore_merges", false);
  options.continuing_subword_prefix = json_string_or_empty(model, "continuing_subword_prefix");
  options.end_of_word_suffix = json_string_or_empty(model, "end_of_word_suffix");
  const std::string unknown = json_string_or_empty(model, "unk_token");
  if (!unknown.empty()) {
    options.unknown_token = parts.vocabulary->find(unknown);
    if (options.unknown_token == kNoToken) {
      fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: model.unk_token '{}' isn't in the vocabulary", unknown);
    }
  }
  parts.unknown_token = options.unknown_token;
  parts.model = make_bpe_model(*parts.vocabulary, document.merges, std::move(options));
}

AddedToken read_added_token(const json& description, std::int64_t id) {
  if (id < 0 || id >= limits::kVocabularySizeMax) {
    fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: an added token has id {}, outside the vocabulary", id);
  }
  AddedToken token;
  token.content = json_string(description, "content", "an added token");
  token.id = static_cast<std::int32_t>(id);
  token.special = json_bool(description, "special", false);
  token.normalized = json_bool(description, "normalized", !token.special);
  token.strip_left = json_bool(description, "lstrip", false);
  token.strip_right = json_bool(description, "rstrip", false);
  token.single_word = json_bool(description, "single_word", false);
  return token;
}

/// Collects added tokens and checks that they continue the vocabulary without contradiction.
class AddedTokenList {
 public:
  explicit AddedTokenList(TokenizerParts& parts) : parts_(parts) {}

  void add(AddedToken token) {
    if (token.content.empty()) return;
    if (!texts_.insert(token.content).second) return refuse_repeated(token);
    const std::int32_t in_model = parts_.vocabulary->find(token.content);
    if (in_model != kNoToken && in_model != token.id) {
      fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: the added token '{}' has id {}, but {} in the vocabulary",
           token.content, token.id, in_model);
    }
    const bool taken = in_model == kNoToken && parts_.vocabulary->contains(token.id);
    if (taken || !ids_.insert(token.id).second) {
      fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: the id {} of added token '{}' is also another token's",
           token.id, token.content);
    }
    parts_.added_tokens.push_back(std::move(token));
  }

  /// Ids beyond the vocabulary must be its continuation: at most one for each added token.
  void finish() const {
    std::int64_t new_count = 0;
    for (const AddedToken& token : parts_.added_tokens) new_count += !parts_.vocabulary->contains(token.id);
    for (const AddedToken& token : parts_.added_tokens) {
      if (token.id >= parts_.vocabulary->size() + new_count) {
        fail(ErrorCode::kInvalidCheckpoint,
             "tokenizer.json: the added token '{}' has id {}, outside the vocabulary of {} tokens and {} added ones",
             token.content, token.id, parts_.vocabulary->size(), new_count);
      }
    }
  }
  bool has_id(std::int32_t id) const { return ids_.contains(id); }
  bool has_text(const std::string& text) const { return texts_.contains(text); }

 private:
  void refuse_repeated(const AddedToken& token) const {
    for (const AddedToken& other : parts_.added_tokens) {
      if (other.content == token.content && other.id != token.id) {
        fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: the added token '{}' has two ids, {} and {}",
             token.content, other.id, token.id);
      }
    }
  }

  TokenizerParts& parts_;
  std::set<std::string> texts_;
  std::set<std::int32_t> ids_;
};

void read_added_tokens(const json& root, const json& config, TokenizerParts& parts) {
  AddedTokenList list(parts);
  const json& tokens = member_or_null(root, "added_tokens");
  if (!tokens.is_null() && !tokens.is_array()) {
    fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: added_tokens isn't an array");
  }
  for (const json& token : tokens) list.add(read_added_token(token, json_integer(token, "id", "an added token")));
  // tokenizer_config.json may know more (transformers adds these as well).
  const json& more = member_or_null(config, "added_tokens_decoder");
  if (more.is_object()) {
    for (const auto& [key, token] : more.items()) {
      if (key.empty() || key.size() > 9 || key.find_first_not_of("0123456789") != key.npos || !token.is_object()) {
        fail(ErrorCode::kInvalidCheckpoint, "tokenizer_config.json: '{}' in added_tokens_decoder isn't a token id",
             key);
      }
      const std::int32_t id = std::stoi(key);
      const bool known = list.has_id(id) || list.has_text(json_string_or_empty(token, "content"));
      if (!known) list.add(read_added_token(token, id));
    }
  }
  list.finish();
}

using Ids = std::vector<std::int32_t>;

void append_template_token(const json& processor, const json& piece, Ids& ids) {
  const std::string name =
      json_string(json_member(piece, "SpecialToken", "TemplateProcessing"), "id", "TemplateProcessing");
  const json& known = json_member(processor, "special_tokens", "post_processor TemplateProcessing");
  const json& token = json_member(known, name.c_str(), "special_tokens of TemplateProcessing");
  for (const json& id : json_array(token, "ids", "a special token of TemplateProcessing")) {
    if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() >= limits::kVocabularySizeMax) {
      fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: the special token '{}' has id {}, outside the vocabulary",
           name, id.dump());
    }
    ids.push_back(id.get<std::int32_t>());
  }
}

void read_template(const json& processor, Ids& prefix, Ids& suffix) {
  int sequences = 0;
  for (const json& piece : json_array(processor, "single", "post_processor TemplateProcessing")) {
    if (piece.is_object() && piece.contains("Sequence")) {
      ++sequences;
    } else {
      append_template_token(processor, piece, sequences == 0 ? prefix : suffix);
    }
  }
  if (sequences != 1) {
    fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: TemplateProcessing holds the text {} times, not once",
         sequences);
  }
}

std::int32_t read_pair_id(const json& processor, const char* key) {
  const json& pair = json_array(processor, key, "post_processor");
  if (pair.size() != 2 || !pair[1].is_number_integer()) {
    fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: '{}' of the post_processor isn't [text, id]", key);
  }
  const auto id = pair[1].get<std::int64_t>();
  return id < 0 || id >= limits::kVocabularySizeMax ? static_cast<std::int32_t>(limits::kVocabularySizeMax)
                                                    : static_cast<std::int32_t>(id);
}

void read_post_processor(const json& processor, TokenizerParts& parts, int& steps_left) {
  if (processor.is_null()) return;
  if (--steps_left < 0) {
    fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: more than {} post-processors", limits::kTokenizerStepsMax);
  }
  const std::string type = json_string(processor, "type", "post_processor");
  Ids prefix, suffix;
  if (type == "Sequence") {
    for (const json& step : json_array(processor, "processors", "post_processor Sequence")) {
      read_post_processor(step, parts, steps_left);
    }
  } else if (type == "TemplateProcessing") {
    read_template(processor, prefix, suffix);
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    prefix.push_back(read_pair_id(processor, "cls"));
    suffix.push_back(read_pair_id(processor, "sep"));
  } else if (type != "ByteLevel") {
    fail(ErrorCode::kInvalidCheckpoint, "tokenizer.json: the post_processor type '{}' isn't supported", type);
  }
  parts.prefix.insert(parts.prefix.begin(), prefix.begin(), prefix.end());
  parts.suffix.insert(parts.suffix.end(), suffix.begin(), suffix.end());
}

std::optional<std::int32_t> find_token(const TokenizerParts& parts, const std::string& text) {
  if (text.empty()) return std::nullopt;
  for (const AddedToken& token : parts.added_tokens) {
    if (token.content == text) return token.id;
  }
  const std::int32_t id = parts.vocabulary->find(text);
  return id == kNoToken ? std::nullopt : std::optional(id);
}

void read_special_texts(const json& config, TokenizerParts& parts) {
  for (const auto& [key, value] : config.items()) {
    if (!key.ends_with("_token")) continue;
    std::string text = value.is_string() ? value.get<std::string>() : json_string_or_empty(value, "content");
    if (!text.empty()) parts.special_texts[key] = std::move(text);
  }
  parts.bos_token = find_token(parts, parts.special_texts["bos_token"]);
  parts.eos_token = find_token(parts, parts.special_texts["eos_token"]);
}

void read_chat_templates(const json& value, TokenizerParts& parts) {
  const auto put = [&](const std::string& name, const std::string& source) {
    if (source.size() > limits::kTemplateSourceBytesMax) {
      fail(ErrorCode::kInvalidCheckpoint, "the chat template '{}' is larger than {} bytes", name,
           limits::kTemplateSourceBytesMax);
    }
    parts.chat_templates[name] = source;
  };
  if (value.is_string()) return put("default", value.get<std::string>());
  if (value.is_object()) {
    for (const auto& [name, source] : value.items()) {
      if (source.is_string()) put(name, source.get<std::string>());
    }
  }
  if (!value.is_array()) return;
  for (const json& entry : value) {
    const std::string name = json_string_or_empty(entry, "name");
    if (!name.empty()) put(name, json_string_or_empty(entry, "template"));
  }
}

void apply_config(const json& config, TokenizerParts& parts) {
  read_special_texts(config, parts);
  read_chat_templates(member_or_null(config, "chat_template"), parts);
  const auto wants = [&](const char* key) {
    const json& value = member_or_null(config, key);
    return value.is_boolean() && value.get<bool>();
  };
  // transformers builds the post-processor anew from these; what the file's own already adds isn't added twice.
  const auto missing = [](const Ids& ids, std::int32_t id) {
    return std::find(ids.begin(), ids.end(), id) == ids.end();
  };
  if (wants("add_bos_token") && parts.bos_token && missing(parts.prefix, *parts.bos_token)) {
    parts.prefix.insert(parts.prefix.begin(), *parts.bos_token);
  }
  if (wants("add_eos_token") && parts.eos_token && missing(parts.suffix, *parts.eos_token)) {
    parts.suffix.push_back(*parts.eos_token);
  }
}

json parse_config(std::string_view text, const char* name) {
  if (text.empty()) return json::object();
  // The depth is bounded before a tree is built: trees of any depth parse, but freeing one recurses.
  const auto bounded = [name](int depth, json::parse_event_t, json&) {
    if (depth > limits::kJsonDepthMax) {
      fail(ErrorCode::kInvalidCheckpoint, "{}: nested deeper than {} levels", name, limits::kJsonDepthMax);
    }
    return true;
  };
  try {
    json config = json::parse(text.begin(), text.end(), bounded);
    if (config.is_object()) return config;
  } catch (const json::parse_error& error) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: not valid JSON at byte {}; download the file again", name, error.byte);
  } catch (const json::exception&) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: not valid JSON; download the file again", name);
  }
  fail(ErrorCode::kInvalidCheckpoint, "{}: isn't a JSON object; download the file again", name);
}

TokenizerParts read_parts(std::string_view tokenizer_json, const json& config) {
  TokenizerDocument document = parse_tokenizer_document(tokenizer_json);
  TokenizerParts parts;
  read_model(document, parts);
  const json& root = document.rest;
  read_added_tokens(root, config, parts);
  parts.normalizer = Normalizer::from_json(member_or_null(root, "normalizer"));
  parts.pre_tokenizer = PreTokenizerChain::from_json(member_or_null(root, "pre_tokenizer"));
  parts.decoder = Decoder::from_json(member_or_null(root, "decoder"));
  int steps_left = limits::kTokenizerStepsMax;
  read_post_processor(member_or_null(root, "post_processor"), parts, steps_left);
  apply_config(config, parts);
  return parts;
}

std::string read_file(const std::filesystem::path& path, bool required) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error) {
    if (!required) return "";
    fail(ErrorCode::kInvalidCheckpoint, "{}: can't be read ({}); a model directory needs it", path.string(),
         error.message());
  }
  if (size > limits::kJsonFileBytesMax) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: larger than {} bytes", path.string(), limits::kJsonFileBytesMax);
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(size, '\0');
  file.read(text.data(), static_cast<std::streamsize>(size));
  if (!file) fail(ErrorCode::kInvalidCheckpoint, "{}: can't be read", path.string());
  return text;
}

// Templates in files of their own win over tokenizer_config.json, as in transformers.
void read_template_files(const std::filesystem::path& directory, TokenizerParts& parts) {
  const std::string wrapped = read_file(directory / "chat_template.json", false);
  if (!wrapped.empty()) {
    read_chat_templates(member_or_null(parse_config(wrapped, "chat_template.json"), "chat_template"), parts);
  }
  const std::string plain = read_file(directory / "chat_template.jinja", false);
  if (!plain.empty()) read_chat_templates(json(plain), parts);
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory / "additional_chat_templates", error)) {
    if (entry.path().extension() != ".jinja") continue;
    read_chat_templates(json{{entry.path().stem().string(), read_file(entry.path(), true)}}, parts);
  }
}

}  // namespace

std::shared_ptr<const Tokenizer> Tokenizer::from_directory(const std::filesystem::path& directory) {
  const std::string tokenizer_json = read_file(directory / "tokenizer.json", true);
  const std::string config_json = read_file(directory / "tokenizer_config.json", false);
  try {
    TokenizerParts parts = read_parts(tokenizer_json, parse_config(config_json, "tokenizer_config.json"));
    read_template_files(directory, parts);
    return std::make_shared<TokenizerPipeline>(std::move(parts));
  } catch (const Error& error) {
    fail(error.code(), "{}: {}", directory.string(), error.what());
  }
}

std::shared_ptr<const Tokenizer> Tokenizer::from_json(std::string_view tokenizer_json, std::string_view config_json) {
  return std::make_shared<TokenizerPipeline>(
      read_parts(tokenizer_json, parse_config(config_json, "tokenizer_config.json")));
}

}  // namespace tensorfold
