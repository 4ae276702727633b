// Model resolution against small cache folders laid out as the Hugging Face tools lay them out.
#include "hub/resolve.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>

#include "base/error.h"
#include "base/temporary_folder.h"

namespace tensorfold {
namespace {

namespace fs = std::filesystem;

const std::string kOld(40, 'a'), kNew(40, 'b');

class Hub : public testing::Test {
 protected:
  Hub() { ::setenv("HF_HUB_CACHE", root_.c_str(), 1); }
  ~Hub() override {
    ::unsetenv("HF_HUB_CACHE");
    ::unsetenv("HF_HOME");
  }

  fs::path write(const fs::path& file, const std::string& text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
    return root_ / file;
  }
  fs::path snapshot(const std::string& folder, const std::string& commit, int age_s) const {
    const fs::path config = write(fs::path(folder) / "snapshots" / commit / "config.json", R"({"model_type":"llama"})");
    fs::last_write_time(config.parent_path(), fs::file_time_type::clock::now() - std::chrono::seconds(age_s));
    return config.parent_path();
  }
  static std::string error(const std::string& model, ErrorCode code) {
    try {
      resolve_model(model);
    } catch (const Error& failure) {
      EXPECT_EQ(static_cast<int>(failure.code()), static_cast<int>(code)) << failure.what();
      return failure.what();
    }
    ADD_FAILURE() << model << " was resolved";
    return "";
  }

  const TemporaryFolder folder_;
  const fs::path root_ = folder_.path();
};

TEST_F(Hub, FoldersAndGgufFilesAreUsedAsTheyAre) {
  EXPECT_EQ(resolve_model(root_.string()), root_);
  const fs::path file = write("m.gguf", "x");
  EXPECT_EQ(resolve_model(file.string()), file);
  EXPECT_NE(error(write("m.bin", "x").string(), ErrorCode::kInvalidArgument).find(".gguf"), std::string::npos);
}

TEST_F(Hub, RefsMainWins) {
  const fs::path old_snapshot = snapshot("models--o--n", kOld, 100);
  snapshot("models--o--n", kNew, 1);
  write("models--o--n/refs/main", kOld + "\n");
  EXPECT_EQ(resolve_model("o/n"), old_snapshot);
}

TEST_F(Hub, TheNewestSnapshotWithAConfigFollows) {
  snapshot("models--o--n", kOld, 100);
  const fs::path new_snapshot = snapshot("models--o--n", kNew, 10);
  fs::create_directories(root_ / "models--o--n/snapshots" / std::string(40, 'c'));  // newest, without config.json
  EXPECT_EQ(resolve_model("o/n"), new_snapshot);
  for (const std::string& main : {std::string(40, 'd'), std::string("../../etc"), kOld + "0", std::string(40, '/')}) {
    write("models--o--n/refs/main", main);
    EXPECT_EQ(resolve_model("o/n"), new_snapshot) << main;
  }
}

TEST_F(Hub, SaysHowToGetItOrWhatIsWrong) {
  EXPECT_NE(error("o/n", ErrorCode::kNotFound).find("hf download o/n"), std::string::npos);
  fs::create_directories(root_ / "models--o--n/snapshots" / kOld);
  EXPECT_NE(error("o/n", ErrorCode::kNotFound).find("hf download o/n"), std::string::npos);
  EXPECT_NE(error("o/n@main", ErrorCode::kInvalidArgument).find("a revision"), std::string::npos);
  EXPECT_NE(error("name", ErrorCode::kInvalidArgument).find("neither"), std::string::npos);
  EXPECT_NE(error("a/b/c", ErrorCode::kInvalidArgument).find("neither"), std::string::npos);
  EXPECT_NE(error("o/n$", ErrorCode::kInvalidArgument).find("neither"), std::string::npos);
  EXPECT_NE(error("", ErrorCode::kInvalidArgument).find("no model"), std::string::npos);
  EXPECT_NE(error("./absent", ErrorCode::kNotFound).find("isn't there"), std::string::npos);
  EXPECT_NE(error("absent.gguf", ErrorCode::kNotFound).find("isn't there"), std::string::npos);
}

TEST_F(Hub, RepositoryIds) {
  EXPECT_TRUE(is_repository_id("Owner-1/Name_2.3"));
  EXPECT_TRUE(is_repository_id(std::string(96, 'o') + "/" + std::string(96, 'n')));
  for (const std::string text : {"", "/", "a/", "/b", "a", "a/b/c", "../b", "a/..", "a/.", "a b/c", "a/b\n"}) {
    EXPECT_FALSE(is_repository_id(text)) << text;
  }
  EXPECT_FALSE(is_repository_id(std::string(97, 'o') + "/n"));
}

TEST_F(Hub, CacheFolderFollowsTheEnvironment) {
  EXPECT_EQ(hub_cache_folder(), root_);
  ::unsetenv("HF_HUB_CACHE");
  ::setenv("HF_HOME", "/home/hf", 1);
  EXPECT_EQ(hub_cache_folder(), "/home/hf/hub");
  ::unsetenv("HF_HOME");
  EXPECT_EQ(hub_cache_folder(), fs::path(std::getenv("HOME")) / ".cache/huggingface/hub");
}

TEST_F(Hub, DefaultNames) {
  EXPECT_EQ(default_model_name("owner/Name-1B"), "Name-1B");
  EXPECT_EQ(default_model_name("/models/smol/"), "smol");
  EXPECT_EQ(default_model_name("/models/smol.Q4.gguf"), "smol.Q4");
  EXPECT_EQ(default_model_name("models/smol.gguf"), "smol");
  EXPECT_EQ(default_model_name("."), fs::current_path().filename().string());
  EXPECT_EQ(default_model_name("/"), "model");
}

TEST_F(Hub, ListsWhatCouldBeServed) {
  const fs::path first = snapshot("models--o--n--with--dashes", kOld, 5);
  fs::create_directories(root_ / "blobs");
  std::ofstream(root_ / "blobs/weights") << std::string(1000, 'w');
  fs::create_symlink(root_ / "blobs/weights", first / "model.safetensors");
  write("models--a--b/snapshots/" + kNew + "/config.json", "not json");
  write("models--a--c/snapshots/" + kNew + "/config.json", std::string(100'000, '['));
  write("datasets--a--b/snapshots/" + kNew + "/config.json", R"({"model_type":"llama"})");
  const auto found = list_cached_checkpoints();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].repository, "o/n--with--dashes");
  EXPECT_EQ(found[0].revision, kOld);
  EXPECT_EQ(found[0].path, first);
  EXPECT_EQ(found[0].model_type, "llama");
  EXPECT_EQ(found[0].bytes, 1000 + fs::file_size(first / "config.json"));
}

}  // namespace
}  // namespace tensorfold
