// A GGUF file's tokenizer, read directly and by way of the tokenizer.json that a conversion writes: the same ids.
#include "serve/gguf_vocabulary.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "base/error.h"

namespace tensorfold {
namespace {

std::shared_ptr<const Checkpoint> golden(const char* name) {
  return Checkpoint::open(std::filesystem::path(TENSORFOLD_SOURCE_DIR) / "tests/golden/models" / name / "model.gguf");
}

TEST(GgufVocabulary, TokenizerJsonGivesTheSameIds) {
  const auto corpus = nlohmann::json::parse(
      std::ifstream(std::filesystem::path(TENSORFOLD_SOURCE_DIR) / "tests/golden/tokenizers/corpus.json"));
  for (const char* name : {"gguf_llama", "gguf_qwen3"}) {
    const GgufVocabulary vocabulary = gguf_vocabulary(*golden(name));
    const auto direct = Tokenizer::from_gguf(vocabulary);
    const auto written = Tokenizer::from_json(gguf_tokenizer_json(vocabulary), "");
    int compared = 0;
    const std::function<void(const nlohmann::json&)> visit = [&](const nlohmann::json& value) {
      if (value.is_string()) {
        const auto text = value.get<std::string>();
        EXPECT_EQ(direct->encode(text, {}), written->encode(text, {})) << name << ": " << text;
        ++compared;
      }
      if (value.is_structured()) {
        for (const auto& each : value) visit(each);
      }
    };
    visit(corpus);
    EXPECT_GT(compared, 50) << name;
    EXPECT_EQ(direct->encode("<|im_start|>user", {}), written->encode("<|im_start|>user", {}));
    EXPECT_EQ(direct->is_special(1), written->is_special(1));
  }
}

TEST(GgufVocabulary, ScoresHaveNoSuchForm) {
  try {
    gguf_tokenizer_json(gguf_vocabulary(*golden("gguf_gemma3")));
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(ErrorCode::kUnsupported));
  }
}

}  // namespace
}  // namespace tensorfold
