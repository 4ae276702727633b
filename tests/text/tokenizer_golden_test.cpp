// The five models of ../shared/data/tokenizers.tar.xz against what the `tokenizers` package made of the same texts: a
// corpus id by id, 10,000 seeded random strings and 1,000 random id sequences by hash
// (tests/golden/make_tokenizers.py).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/temporary_folder.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace tensorfold {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr std::uint64_t kHashStart = 0xCBF29CE484222325ull;

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t below(std::uint64_t count) {
    state_ += 0x9E3779B97F4A7C15ull;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return (z ^ (z >> 31)) % count;
  }

 private:
  std::uint64_t state_;
};

void hash_text(std::string_view bytes, std::uint64_t& value) {
  for (const char c : bytes) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
}

void hash_ids(const std::vector<std::int32_t>& ids, std::uint64_t& value) {
  const auto add = [&](std::uint32_t id) {
    for (int i = 0; i < 4; ++i) value = (value ^ (id >> (8 * i) & 0xFF)) * 0x100000001B3ull;
  };
  for (const std::int32_t id : ids) add(static_cast<std::uint32_t>(id));
  add(0xFFFFFFFFu);
}

json read_json(const fs::path& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("missing " + path.string());
  return json::parse(file);
}

std::string random_string(Random& random, const json& corpus) {
  const json& ranges = corpus["ranges"];
  const json& spaces = corpus["spaces"];
  const json& snippets = corpus["snippets"];
  std::string out;
  const std::uint64_t count = 1 + random.below(40);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t kind = random.below(10);
    if (kind < 4) {
      const json& range = ranges[random.below(ranges.size())];
      const auto low = range[0].get<std::uint32_t>(), high = range[1].get<std::uint32_t>();
      unicode::append_utf8(out, low + static_cast<char32_t>(random.below(high - low + 1)));
    } else if (kind < 6) {
      out.push_back(static_cast<char>(0x21 + random.below(0x5E)));
    } else if (kind < 8) {
      unicode::append_utf8(out, spaces[random.below(spaces.size())].get<std::uint32_t>());
    } else if (kind < 9) {
      out += snippets[random.below(snippets.size())].get<std::string>();
    } else if (!out.empty()) {
      std::size_t last = out.size() - 1;
      while ((static_cast<unsigned char>(out[last]) & 0xC0) == 0x80) --last;
      const std::string character = out.substr(last);
      for (std::uint64_t k = random.below(5); k > 0; --k) out += character;
    }
  }
  return out;
}

std::string stream_decode(const std::shared_ptr<const Tokenizer>& tokenizer, const std::vector<std::int32_t>& ids,
                          bool skip_special) {
  StreamDecoder decoder(tokenizer, skip_special);
  std::string out;
  for (const std::int32_t id : ids) {
    const std::string text = decoder.push(id);
    EXPECT_TRUE(unicode::is_valid_utf8(text));
    out += text;
  }
  return out + decoder.finish();
}

/// The unpacked archive, once a process; empty when there's none.
class Archive {
 public:
  static const Archive& get() {
    static const Archive archive;
    return archive;
  }
  const fs::path& directory() const { return directory_; }

 private:
  Archive() {
    const char* shared = std::getenv("TENSORFOLD_SHARED");
    fs::path root = shared != nullptr ? fs::path(shared) : fs::path(TENSORFOLD_SOURCE_DIR) / ".." / "shared";
    const fs::path packed = root / "data" / "tokenizers.tar.xz";
    if (!fs::exists(packed)) return;
    folder_ = std::make_unique<TemporaryFolder>();
    directory_ = folder_->path();
    const std::string command = "tar -xJf '" + packed.string() + "' -C '" + directory_.string() + "'";
    if (std::system(command.c_str()) != 0) throw std::runtime_error("can't unpack " + packed.string());
  }
  std::unique_ptr<TemporaryFolder> folder_;
  fs::path directory_;
};

class TokenizerGolden : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const fs::path golden = fs::path(TENSORFOLD_SOURCE_DIR) / "tests" / "golden" / "tokenizers";
    corpus_ = read_json(golden / "corpus.json");
    expected_ = read_json(golden / (std::string(GetParam()) + ".json"));
    if (Archive::get().directory().empty()) {
      GTEST_SKIP() << "shared/data/tokenizers.tar.xz isn't there (set TENSORFOLD_SHARED to the shared folder)";
    }
    tokenizer_ = Tokenizer::from_directory(Archive::get().directory() / "tokenizers" / GetParam());
  }
  void check_encoding();
  void check_decoding_of_random_ids();
  void check_messages_yield_no_special_token();
  void check_segments();

  json corpus_, expected_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

void TokenizerGolden::check_encoding() {
  EXPECT_EQ(tokenizer_->size(), expected_["size"].get<int>());
  const json& texts = corpus_["texts"];
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto text = texts[i].get<std::string>();
    const auto ids = tokenizer_->encode(text, {});
    EXPECT_EQ(ids, expected_["ids"][i].get<std::vector<std::int32_t>>()) << "text " << i << ": " << text;
    const json& decoded = expected_["decoded"][i];
    EXPECT_EQ(tokenizer_->decode(ids, false), decoded.is_null() ? text : decoded.get<std::string>()) << "text " << i;
    EXPECT_EQ(stream_decode(tokenizer_, ids, false), tokenizer_->decode(ids, false)) << "text " << i;
  }

  Random random(corpus_["seed"].get<std::uint64_t>());
  const auto batch = corpus_["batch"].get<int>();
  int batch_index = 0;
  for (const json& hash : expected_["string_hashes"]) {
    std::uint64_t value = kHashStart;
    for (int i = 0; i < batch; ++i) {
      const auto ids = tokenizer_->encode(random_string(random, corpus_), {});
      hash_ids(ids, value);
      const std::string decoded = tokenizer_->decode(ids, false);
      hash_text(decoded, value);
      if (i == 0) {
        EXPECT_EQ(stream_decode(tokenizer_, ids, false), decoded);
      }
    }
    EXPECT_EQ(fmt::format("{:016x}", value), hash.get<std::string>()) << "random strings, batch " << batch_index;
    ++batch_index;
  }
}

void TokenizerGolden::check_decoding_of_random_ids() {
  Random random(corpus_["seed"].get<std::uint64_t>() + 1);
  const auto size = static_cast<std::uint64_t>(tokenizer_->size());
  for (const json& hash : expected_["sequence_hashes"]) {
    std::uint64_t value = kHashStart;
    for (int i = 0; i < corpus_["batch"].get<int>(); ++i) {
      std::vector<std::int32_t> ids(1 + random.below(20));
      for (std::int32_t& id : ids) {
        const std::uint64_t range = random.below(2) != 0 ? size : 600;
        id = static_cast<std::int32_t>(random.below(range));
      }
      for (const bool skip : {false, true}) {
        const std::string decoded = tokenizer_->decode(ids, skip);
        hash_text(decoded, value);
        EXPECT_EQ(stream_decode(tokenizer_, ids, skip), decoded);
      }
    }
    EXPECT_EQ(fmt::format("{:016x}", value), hash.get<std::string>());
  }
}

void TokenizerGolden::check_messages_yield_no_special_token() {
  for (const json& text : corpus_["texts"]) {
    for (const std::int32_t id : tokenizer_->encode(text.get<std::string>(), {.parse_added_tokens = false})) {
      EXPECT_FALSE(tokenizer_->is_special(id)) << text << " yields " << tokenizer_->token_text(id);
    }
  }
}

void TokenizerGolden::check_segments() {
  // Cut anywhere, all of it control text: the same ids as the whole.
  Random random(7);
  for (const json& text : corpus_["texts"]) {
    const auto whole = text.get<std::string>();
    std::vector<PromptSegment> segments;
    for (std::size_t begin = 0; begin < whole.size();) {
      std::size_t end = std::min<std::size_t>(whole.size(), begin + 1 + random.below(20));
      while (end < whole.size() && (static_cast<unsigned char>(whole[end]) & 0xC0) == 0x80) ++end;
      segments.push_back({whole.substr(begin, end - begin), true});
      begin = end;
    }
    EXPECT_EQ(tokenizer_->encode_segments(segments), tokenizer_->encode(whole, {}));
    for (PromptSegment& segment : segments) segment.control = false;
    EXPECT_EQ(tokenizer_->encode_segments(segments), tokenizer_->encode(whole, {.parse_added_tokens = false}));
  }
}

// One test a model: unpacking and loading cost more than the checks.
TEST_P(TokenizerGolden, EqualsThePackage) {
  check_encoding();
  check_decoding_of_random_ids();
  check_messages_yield_no_special_token();
  check_segments();
}

INSTANTIATE_TEST_SUITE_P(Models, TokenizerGolden, testing::Values("qwen3", "llama3", "gptoss", "deepseek_v3", "gemma3"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tensorfold
