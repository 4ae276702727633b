// Templates of real models against jinja2, over the conversations of tests/golden/templates. The templates aren't in
// the tree: they come from ../shared/data/tokenizers.tar.xz and llama-cpp-python's source archive, unpacked where
// TENSORFOLD_TOKENIZERS_DIR and TENSORFOLD_TEMPLATES_DIR say.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "template_golden.h"

namespace tensorfold {
namespace {

std::string hash_text(const std::string& text) {
  std::uint64_t value = 0xcbf29ce484222325u;
  for (char byte : text) value = (value ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
  return fmt::format("{:016x}", value);
}

// `variable`'s folder, or one under .cache/ (./test unpacks the tokenizers there; the other archive is unpacked by hand).
std::filesystem::path folder_from(const char* variable, const char* under_cache) {
  const char* folder = std::getenv(variable);
  return folder != nullptr ? std::filesystem::path(folder)
                           : std::filesystem::path(TENSORFOLD_SOURCE_DIR) / ".cache" / under_cache;
}

void expect_equal_renders(const std::string& name, const std::string& source, const nlohmann::ordered_json& golden) {
  const nlohmann::ordered_json conversations = read_template_golden("conversations.json");
  if (golden["source"] != hash_text(source)) {
    ADD_FAILURE() << name << " isn't the template that the expected values were made from";
    return;
  }
  std::size_t index = 0;
  for (const auto& [key, variables] : conversations["cases"].items()) {
    const nlohmann::ordered_json& expected = golden["renders"][index++];
    const RenderedText rendered = render_source(source, variables, conversations["now"]);
    const std::string got = rendered.failed ? "error" : hash_text(rendered.text);
    EXPECT_EQ(got, expected.is_null() ? "error" : expected.get<std::string>())
        << name << ", conversation '" << key << "':\n"
        << rendered.text;
  }
}

TEST(TemplateModels, TokenizerFoldersEqualJinja2) {
  setenv("TZ", "UTC", 1);
  const std::filesystem::path folder = folder_from("TENSORFOLD_TOKENIZERS_DIR", "tokenizers");
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "needs ../shared/data/tokenizers.tar.xz unpacked at " << folder;
  int tested = 0;
  const nlohmann::ordered_json renders = read_template_golden("renders.json");
  for (const auto& [name, golden] : renders.items()) {
    if (!name.starts_with("tokenizers/")) continue;
    const auto config = nlohmann::json::parse(
        read_whole_file(folder / name.substr(std::string("tokenizers/").size()) / "tokenizer_config.json"));
    expect_equal_renders(name, config["chat_template"], golden);
    ++tested;
  }
  EXPECT_EQ(tested, 4);  // gptoss keeps its template elsewhere
}

TEST(TemplateModels, LlamaCppTemplatesEqualJinja2) {
  setenv("TZ", "UTC", 1);
  const std::filesystem::path folder = folder_from("TENSORFOLD_TEMPLATES_DIR", "templates");
  if (!std::filesystem::exists(folder)) {
    GTEST_SKIP() << "needs vendor/llama.cpp/models/templates of llama-cpp-python 0.3.36's source archive at " << folder;
  }
  int tested = 0;
  const nlohmann::ordered_json renders = read_template_golden("renders.json");
  for (const auto& [name, golden] : renders.items()) {
    if (!name.starts_with("templates/")) continue;
    expect_equal_renders(name, read_whole_file(folder / name.substr(std::string("templates/").size())), golden);
    ++tested;
  }
  EXPECT_GE(tested, 60);
}

}  // namespace
}  // namespace tensorfold
