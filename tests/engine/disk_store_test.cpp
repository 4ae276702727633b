// Kept states on disk: formats damaged at every byte, restarts, damage in every region of a file, other checkpoints and
// owners, full and broken disks, two users of one folder, kill -9 while it writes. Whatever happens, replies are those
// of a fresh engine.
#include "engine/cache/disk_store.h"
#include "base/temporary_folder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "base/error.h"
#include "engine/engine.h"
#include "eventually.h"
#include "failing_files.h"
#include "fake_model.h"
#include "state_check.h"
#include "stream_probe.h"

namespace tensorfold {
namespace {

using testing::counting_prompt;
using testing::FailingFiles;
using testing::FakeModel;
using testing::FakeModelOptions;
using testing::FlakyFiles;
using testing::request_of;
using testing::StreamProbe;
using Tokens = std::vector<std::int32_t>;
namespace fs = std::filesystem;

/// A folder of its own that goes with the test.
class Folder {
 public:
  const std::string& path() const { return path_; }
  std::vector<fs::path> states() const {
    std::vector<fs::path> files;
    if (!fs::exists(path_ + "/v1/states")) return files;
    for (const auto& entry : fs::directory_iterator(path_ + "/v1/states")) files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    return files;
  }
  void copy_to(const Folder& other) const {
    fs::remove_all(other.path_ + "/v1");
    fs::copy(path_ + "/v1", other.path_ + "/v1", fs::copy_options::recursive);
    ::chmod((other.path_ + "/v1").c_str(), 0700);
    ::chmod((other.path_ + "/v1/states").c_str(), 0700);
  }

 private:
  TemporaryFolder folder_;
  std::string path_ = folder_.path().string();
};

std::vector<char> read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write_file(const fs::path& path, const std::vector<char>& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// --- formats ---------------------------------------------------------------------------------------------------------

StateHeader sample_header() {
  StateHeader header;
  header.id = 7;
  header.parent = 3;
  header.begin = 64;
  header.end = 150;
  header.snapshot_bytes = 12;
  header.identity = "a checkpoint";
  header.scope = "key x";
  for (std::int32_t i = 64; i < 150; ++i) header.tokens.push_back(i * 3);
  header.groups = {{1, 2, 40}, {0, 0, 0}, {2, 1, 30}};
  header.checks = {1, 2, 3, 4};
  return header;
}

TEST(StateFile, HeaderComesBackAndNoDamagePasses) {
  const StateHeader header = sample_header();
  const std::vector<std::byte> bytes = encode_state_header(header);
  const std::uint64_t file_bytes = bytes.size() + header.payload_bytes();
  const StateHeader read = decode_state_header(bytes, file_bytes);
  EXPECT_EQ(read.tokens, header.tokens);
  EXPECT_EQ(read.identity, header.identity);
  EXPECT_EQ(read.scope, header.scope);
  EXPECT_EQ(read.checks, header.checks);
  EXPECT_EQ(read.page_offset(2, 2), 80u);
  EXPECT_EQ(read.page_index(2, 2), 2u);
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const int bit : {0, 3, 7}) {
      std::vector<std::byte> damaged = bytes;
      damaged[at] ^= static_cast<std::byte>(1 << bit);
      EXPECT_THROW(decode_state_header(damaged, file_bytes), Error) << at;
    }
    EXPECT_THROW(decode_state_header(std::span(bytes).first(at), file_bytes), Error) << at;
  }
  EXPECT_THROW(decode_state_header(bytes, file_bytes - 1), Error);
  EXPECT_THROW(decode_state_header(bytes, file_bytes + 1), Error);
}

TEST(LearnManifest, ADamagedTailCostsOnlyWhatFollows) {
  std::vector<std::byte> bytes = manifest_magic();
  std::vector<std::size_t> ends = {bytes.size()};
  const auto add = [&](const std::vector<std::byte>& record) {
    bytes.insert(bytes.end(), record.begin(), record.end());
    ends.push_back(bytes.size());
  };
  StoredState first;
  first.id = 1;
  first.end = 100;
  first.file_bytes = 1000;
  first.identity = "i";
  first.scope = "s";
  first.tokens = counting_prompt(100);
  add(encode_added(first));
  StoredState second = first;
  second.id = 2;
  second.parent = 1;
  second.begin = 64;
  second.end = 130;
  second.tokens.resize(66);
  second.resume_point = true;
  add(encode_added(second));
  add(encode_used(1, 9));
  add(encode_day(20000, 77));
  add(encode_removed(2));
  const ManifestContent all = decode_manifest(bytes);
  EXPECT_EQ(all.states.size(), 1u);
  EXPECT_EQ(all.states.at(1).tokens, first.tokens);
  EXPECT_EQ(all.states.at(1).last_use, 9u);
  EXPECT_EQ(all.next_id, 3u);
  EXPECT_EQ(all.next_use, 10u);
  EXPECT_EQ(all.day_bytes, 77u);
  EXPECT_EQ(all.valid_bytes, bytes.size());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const ManifestContent cut = decode_manifest(std::span(bytes).first(size));
    const auto after = std::upper_bound(ends.begin(), ends.end(), size);
    EXPECT_EQ(cut.valid_bytes, after == ends.begin() ? 0u : *std::prev(after)) << size;
  }
  for (std::size_t at = kManifestMagicBytes; at < bytes.size(); ++at) {
    std::vector<std::byte> damaged = bytes;
    damaged[at] ^= std::byte{0x10};
    const ManifestContent content = decode_manifest(damaged);
    EXPECT_LE(content.valid_bytes, at) << at;
    for (const auto& [id, state] : content.states) {
      EXPECT_EQ(state.tokens, id == 1 ? first.tokens : second.tokens) << "a rotten record was believed";
    }
  }
  bytes[7] = std::byte{2};
  EXPECT_THROW(decode_manifest(bytes), Error);
}

TEST(DiskIndex, FindsTheLongestChainOfSegments) {
  for (const bool anywhere : {true, false}) {
    DiskIndex index(anywhere);
    const Tokens tokens = counting_prompt(400);
    const auto add = [&](std::uint64_t id, std::uint64_t parent, std::int32_t begin, std::int32_t end, bool resume,
                         std::int32_t changed_at = -1) {
      StoredState state;
      state.id = id;
      state.parent = parent;
      state.begin = static_cast<std::uint32_t>(begin);
      state.end = static_cast<std::uint32_t>(end);
      state.resume_point = resume;
      state.identity = "i";
      state.scope = "s";
      state.file_bytes = 10;
      state.last_use = id;
      state.tokens.assign(tokens.begin() + begin, tokens.begin() + end);
      if (changed_at >= 0) state.tokens[static_cast<std::size_t>(changed_at - begin)] ^= 1;
      index.add(state);
    };
    add(1, 0, 0, 192, false);
    add(2, 1, 192, 200, true);
    add(3, 2, 192, 330, true);
    add(4, 1, 128, 300, true, 150);  // leaves the others at 150
    EXPECT_EQ(index.resumable("i", "s", tokens, 400).position, 330);
    EXPECT_EQ(index.resumable("i", "s", tokens, 400).chain, (std::vector<std::uint64_t>{1, 2, 3}));
    EXPECT_EQ(index.resumable("i", "s", tokens, 329).position, anywhere ? 329 : 200);
    EXPECT_EQ(index.resumable("i", "s", tokens, 199).position, anywhere ? 199 : 0);
    EXPECT_EQ(index.covered("i", "s", std::span(tokens).first(250)).position, 250);
    EXPECT_EQ(index.resumable("i", "t", tokens, 400).position, 0);
    EXPECT_EQ(index.resumable("j", "s", tokens, 400).position, 0);
    Tokens other = tokens;
    other[150] ^= 1;
    EXPECT_EQ(index.resumable("i", "s", other, 400).position, 300);
    EXPECT_EQ(index.resumable("i", "s", other, 400).chain, (std::vector<std::uint64_t>{1, 4}));
    EXPECT_EQ(index.least_used({}), 3u);
    const std::vector<std::uint64_t> spared = {3};
    EXPECT_EQ(index.least_used(spared), 4u);
    EXPECT_EQ(index.remove(2).size(), 2u);
    EXPECT_EQ(index.bytes(), 20u);
  }
}

// --- through the engine ----------------------------------------------------------------------------------------------

struct Kind {
  const char* name;
  bool recurrent, sliding;
};

struct Conditions {
  Kind kind{"Full", false, false};
  std::string checkpoint = "fake";
  std::shared_ptr<FileLayer> files;
  std::uint64_t bytes_max = 1ull << 30;
  bool conversations = true;
};

std::unique_ptr<Engine> start(const std::string& folder, const Conditions& conditions) {
  FakeModelOptions model;
  model.has_recurrent = conditions.kind.recurrent;
  model.has_sliding = conditions.kind.sliding;
  model.checkpoint_id = conditions.checkpoint;
  EngineOptions options;
  options.lanes = 3;
  options.context = 1200;
  options.cache_memory_bytes = 1u << 30;
  options.prompt_cache_bytes = 16 << 20;
  options.poison_freed = true;
  options.learn.folder = folder;
  options.learn.conversations = conditions.conversations;
  options.learn.bytes_max = conditions.bytes_max;
  options.learn.free_bytes_min = 0;
  options.learn.tokens_min = 64;
  options.learn.files = conditions.files;
  return Engine::start(std::make_unique<FakeModel>(model), options);
}

struct Outcome {
  Tokens reply;
  StreamStatistics statistics;
};

Outcome run(Engine& engine, const Tokens& prompt, const std::string& owner = "", std::vector<PromptMark> marks = {}) {
  StreamRequest request = request_of(prompt, 20);
  request.prompt.owner = owner;
  request.marks = std::move(marks);
  request.sampling = {0.9, 20, 0.95, 0.0, 5};
  StreamProbe probe;
  engine.open(std::move(request), probe.sink());
  const FinishEvent finish = probe.wait();
  EXPECT_EQ(finish.reason, FinishReason::kLength) << finish.message;
  return {probe.reply(), finish.statistics};
}

Tokens fresh_reply(const Kind& kind, const Tokens& prompt) {
  Conditions conditions;
  conditions.kind = kind;
  return run(*start("", conditions), prompt).reply;
}

Tokens next_turn(Tokens prompt, const Tokens& reply) {
  prompt.insert(prompt.end(), reply.begin(), reply.end());
  for (std::int32_t i = 0; i < 15; ++i) prompt.push_back((i * 11 + 3) % 53);
  return prompt;
}

class Learn : public ::testing::TestWithParam<Kind> {
 protected:
  Conditions conditions() const {
    Conditions conditions;
    conditions.kind = GetParam();
    return conditions;
  }
};

TEST_P(Learn, AConversationGoesOnAfterARestart) {
  const Folder folder;
  Tokens prompt = counting_prompt(500);
  std::int32_t known = 0;
  for (int turn = 0; turn < 4; ++turn) {
    const auto engine = start(folder.path(), conditions());
    ASSERT_EQ(engine->facts().learn_folder, folder.path());
    const Outcome outcome = run(*engine, prompt);
    EXPECT_EQ(outcome.statistics.cached_tokens, known);
    EXPECT_EQ(outcome.reply, fresh_reply(GetParam(), prompt));
    known = static_cast<std::int32_t>(prompt.size()) + 19;
    prompt = next_turn(prompt, outcome.reply);
  }
  for (const fs::path& file : folder.states()) {
    struct stat facts {};
    ASSERT_EQ(::stat(file.c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777, 0600u);
  }
  struct stat facts {};
  ASSERT_EQ(::stat((folder.path() + "/v1").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0700u);
}

TEST_P(Learn, ATurnWritesOnlyWhatIsNew) {
  const Folder folder;
  const Tokens prompt = counting_prompt(900);
  Tokens second;
  {
    const auto engine = start(folder.path(), conditions());
    second = next_turn(prompt, run(*engine, prompt).reply);
  }
  std::uintmax_t first_bytes = 0, bytes = 0;
  for (const fs::path& file : folder.states()) first_bytes += fs::file_size(file);
  { run(*start(folder.path(), conditions()), second); }
  for (const fs::path& file : folder.states()) bytes += fs::file_size(file);
  EXPECT_LT(bytes - first_bytes, first_bytes / 3);
  Tokens other = second;
  other[450] = (other[450] + 1) % 53;  // leaves the conversation in its middle
  for (int i = 0; i < 2; ++i) {
    const Outcome outcome = run(*start(folder.path(), conditions()), other);
    EXPECT_EQ(outcome.reply, fresh_reply(GetParam(), other));
    if (i == 1) {
      EXPECT_GE(outcome.statistics.cached_tokens, 900);
    }
  }
}

TEST_P(Learn, SystemPromptsAloneUnlessConversationsAreWanted) {
  const Folder folder;
  Conditions only_system = conditions();
  only_system.conversations = false;
  const Tokens prompt = counting_prompt(500);
  const std::vector<PromptMark> marks = {{300, PromptMarkKind::kSystemEnd}};
  { run(*start(folder.path(), only_system), prompt, "", marks); }
  const auto engine = start(folder.path(), only_system);
  const Outcome outcome = run(*engine, prompt, "", marks);
  EXPECT_EQ(outcome.statistics.cached_tokens, 300);
  EXPECT_EQ(outcome.reply, fresh_reply(GetParam(), prompt));
}

TEST_P(Learn, OtherCheckpointsAndOwnersSeeNothing) {
  const Folder folder;
  const Tokens prompt = counting_prompt(500);
  { run(*start(folder.path(), conditions()), prompt, "alice"); }
  Conditions other = conditions();
  other.checkpoint = "another";
  EXPECT_EQ(run(*start(folder.path(), other), prompt, "alice").statistics.cached_tokens, 0);
  EXPECT_EQ(run(*start(folder.path(), conditions()), prompt, "bob").statistics.cached_tokens, 0);
  EXPECT_EQ(run(*start(folder.path(), conditions()), prompt, "alice").statistics.cached_tokens, 499);
}

TEST_P(Learn, DamageAnywhereIsAMiss) {
  const Folder whole, folder;
  const Tokens prompt = counting_prompt(200);
  { run(*start(whole.path(), conditions()), prompt); }
  const Tokens second = next_turn(prompt, fresh_reply(GetParam(), prompt));
  const Tokens expected = fresh_reply(GetParam(), second);
  const std::vector<fs::path> files = whole.states();
  ASSERT_FALSE(files.empty());
  for (const fs::path& file : files) {
    const std::vector<char> bytes = read_file(file);
    for (std::size_t region = 0; region < 24; ++region) {
      whole.copy_to(folder);
      std::vector<char> damaged = bytes;
      const bool cut = region % 6 == 5;
      const std::size_t at = region < 8 ? region * 9 : bytes.size() * region / 24;
      if (cut) damaged.resize(at);
      if (!cut) damaged[at] = static_cast<char>(damaged[at] ^ 0x40);
      write_file(fs::path(folder.path()) / "v1/states" / file.filename(), damaged);
      const auto engine = start(folder.path(), conditions());
      const Outcome outcome = run(*engine, second);
      ASSERT_EQ(outcome.reply, expected) << "damaged at " << at << " of " << file;
      ASSERT_LT(outcome.statistics.cached_tokens, 219) << "damaged at " << at;
    }
  }
  whole.copy_to(folder);
  EXPECT_EQ(run(*start(folder.path(), conditions()), second).statistics.cached_tokens, 219);
}

TEST_P(Learn, AManifestDamagedAnywhereIsNeverWrong) {
  const Folder whole, folder;
  const Tokens prompt = counting_prompt(200);
  { run(*start(whole.path(), conditions()), prompt); }
  const Tokens second = next_turn(prompt, fresh_reply(GetParam(), prompt));
  const Tokens expected = fresh_reply(GetParam(), second);
  const std::vector<char> bytes = read_file(whole.path() + "/v1/MANIFEST");
  for (std::size_t region = 0; region < 24; ++region) {
    whole.copy_to(folder);
    std::vector<char> damaged = bytes;
    const std::size_t at = bytes.size() * region / 24;
    if (region % 3 == 0) damaged.resize(at);
    if (region % 3 != 0) damaged[at] = static_cast<char>(damaged[at] ^ 0x21);
    write_file(folder.path() + "/v1/MANIFEST", damaged);
    ASSERT_EQ(run(*start(folder.path(), conditions()), second).reply, expected) << at;
    ASSERT_EQ(run(*start(folder.path(), conditions()), second).reply, expected) << at;
  }
}

TEST_P(Learn, AFullDiskPausesLearningAndServingGoesOn) {
  const Folder folder;
  for (const std::int64_t room : {0, 10, 3000, 9000}) {
    const auto files = std::make_shared<FailingFiles>();
    Conditions broken = conditions();
    broken.files = files;
    const auto engine = start(folder.path(), broken);
    files->bytes_left = room;
    Tokens prompt = counting_prompt(300, static_cast<std::int32_t>(room % 40));
    for (int turn = 0; turn < 3; ++turn) {
      const Outcome outcome = run(*engine, prompt);
      ASSERT_EQ(outcome.reply, fresh_reply(GetParam(), prompt));
      prompt = next_turn(prompt, outcome.reply);
    }
  }
  const Tokens prompt = counting_prompt(300);
  EXPECT_EQ(run(*start(folder.path(), conditions()), prompt).reply, fresh_reply(GetParam(), prompt));
}

TEST_P(Learn, AnyOperationMayFail) {
  const Folder folder;
  std::map<int, Tokens> expected;
  for (std::uint32_t seed = 1; seed <= 12; ++seed) {
    Conditions flaky = conditions();
    flaky.files = std::make_shared<FlakyFiles>(seed, seed % 3 == 0 ? 4 : 25);
    const auto engine = start(folder.path(), flaky);
    for (int i = 0; i < 3; ++i) {
      const Tokens prompt = counting_prompt(200 + 30 * i, i);
      if (expected.count(i) == 0) expected[i] = fresh_reply(GetParam(), prompt);
      ASSERT_EQ(run(*engine, prompt).reply, expected[i]) << "seed " << seed;
    }
  }
}

TEST_P(Learn, AStateWrittenWhileOthersDecodeServesFiftySuffixes) {
  const Folder folder;
  const Tokens shared = counting_prompt(400);
  const auto ask = [](Engine& engine, const Tokens& prompt, StreamProbe& probe) {
    StreamRequest request = request_of(prompt, 20);
    request.sampling = {0.9, 20, 0.95, 0.0, 5};
    request.marks = {{400, PromptMarkKind::kSystemEnd}};
    return engine.open(std::move(request), probe.sink());
  };
  const auto prompt_of = [&shared](std::int32_t suffix) {
    Tokens prompt = shared;
    for (std::int32_t i = 0; i < 30; ++i) prompt.push_back((suffix * 7 + i * (suffix + 2)) % 53);
    return prompt;
  };
  {
    const auto engine = start(folder.path(), conditions());
    std::vector<StreamProbe> probes(6);
    std::vector<std::unique_ptr<StreamHandle>> handles;
    for (std::int32_t i = 0; i < 6; ++i)
      handles.push_back(ask(*engine, prompt_of(100 + i), probes[static_cast<std::size_t>(i)]));
    for (StreamProbe& probe : probes) EXPECT_EQ(probe.wait().reason, FinishReason::kLength);
  }
  const auto engine = start(folder.path(), conditions());
  std::vector<StreamProbe> probes(50);
  std::vector<std::unique_ptr<StreamHandle>> handles;
  for (std::int32_t i = 0; i < 50; ++i)
    handles.push_back(ask(*engine, prompt_of(i), probes[static_cast<std::size_t>(i)]));
  for (std::int32_t i = 0; i < 50; ++i) {
    const FinishEvent finish = probes[static_cast<std::size_t>(i)].wait();
    EXPECT_EQ(finish.reason, FinishReason::kLength) << finish.message;
    EXPECT_GE(finish.statistics.cached_tokens, 400);
    EXPECT_EQ(probes[static_cast<std::size_t>(i)].reply(), fresh_reply(GetParam(), prompt_of(i))) << i;
  }
}

TEST_P(Learn, KilledWhileItWritesItIsNeverWrong) {
  const Folder folder;
  std::mt19937 random(3);
  std::map<int, Tokens> expected;
  for (int i = 0; i < 6; ++i) expected[i] = fresh_reply(GetParam(), counting_prompt(300, i));
  std::int32_t resumed = 0;
  std::size_t states = 0;                                                   // that survived, over all rounds
  const int rounds = std::getenv("TENSORFOLD_LONG") != nullptr ? 125 : 10;  // 500 kills over the four kinds
  for (int round = 0; round < rounds; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const auto engine = start(folder.path(), conditions());
      for (int i = 0;; ++i) run(*engine, counting_prompt(300, (i * 5 + round) % 53));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(2000 + random() % 60'000));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status));
    const auto engine = start(folder.path(), conditions());
    ASSERT_EQ(testing::first_damaged_state(folder.path(), states), "");
    for (const auto& [first, reply] : expected) {
      const Outcome outcome = run(*engine, counting_prompt(300, first));
      ASSERT_EQ(outcome.reply, reply);
      resumed += outcome.statistics.cached_tokens;
    }
  }
  EXPECT_GT(resumed, 0);
  EXPECT_GT(states, 0u);
  std::fprintf(stderr, "  %d kills; %zu states found whole after them, %d tokens resumed by %d replies\n", rounds,
               states, resumed, rounds * static_cast<int>(expected.size()));
}

INSTANTIATE_TEST_SUITE_P(Kinds, Learn,
                         ::testing::Values(Kind{"Full", false, false}, Kind{"Recurrent", true, false},
                                           Kind{"Sliding", false, true}, Kind{"All", true, true}),
                         [](const auto& info) { return info.param.name; });

TEST(LearnFolder, ASecondUserRunsWithoutIt) {
  const Folder folder;
  const auto first = start(folder.path(), {});
  const auto second = start(folder.path(), {});
  EXPECT_EQ(first->facts().learn_folder, folder.path());
  EXPECT_EQ(second->facts().learn_folder, "");
  const Tokens prompt = counting_prompt(200);
  EXPECT_EQ(run(*second, prompt).reply, run(*first, prompt).reply);
}

TEST(LearnFolder, OneThatOthersMayReadIsRefused) {
  const Folder folder;
  fs::create_directory(folder.path() + "/v1");
  ::chmod((folder.path() + "/v1").c_str(), 0755);
  EXPECT_EQ(start(folder.path(), {})->facts().learn_folder, "");
  fs::remove(folder.path() + "/v1");
  fs::create_directory(folder.path() + "/elsewhere");
  fs::create_directory_symlink(folder.path() + "/elsewhere", folder.path() + "/v1");
  EXPECT_EQ(start(folder.path(), {})->facts().learn_folder, "");
  EXPECT_EQ(start("/proc/nowhere", {})->facts().learn_folder, "");
}

TEST(LearnFolder, AStateThatIsALinkIsNotFollowed) {
  const Folder folder;
  const Tokens prompt = counting_prompt(300);
  { run(*start(folder.path(), {}), prompt); }
  const fs::path file = folder.states().at(0), elsewhere = folder.path() + "/elsewhere";
  fs::rename(file, elsewhere);
  fs::create_symlink(elsewhere, file);
  EXPECT_EQ(run(*start(folder.path(), {}), prompt).statistics.cached_tokens, 0);
  EXPECT_TRUE(fs::exists(elsewhere));
}

TEST(LearnFolder, LeastRecentlyUsedStatesGoFirst) {
  const Folder folder;
  Conditions small;
  small.bytes_max = 70'000;  // three prompts of 5 pages
  {
    const auto engine = start(folder.path(), small);
    for (std::int32_t i = 0; i < 3; ++i) run(*engine, counting_prompt(300, i));
  }
  { EXPECT_EQ(run(*start(folder.path(), small), counting_prompt(300, 0)).statistics.cached_tokens, 299); }
  { run(*start(folder.path(), small), counting_prompt(300, 40)); }
  std::uintmax_t bytes = 0;
  for (const fs::path& file : folder.states()) bytes += fs::file_size(file);
  EXPECT_LE(bytes, small.bytes_max);
  EXPECT_EQ(run(*start(folder.path(), small), counting_prompt(300, 0)).statistics.cached_tokens, 299);
  EXPECT_EQ(run(*start(folder.path(), small), counting_prompt(300, 1)).statistics.cached_tokens, 0);
}

// --- the store alone -------------------------------------------------------------------------------------------------

std::unique_ptr<StateToWrite> state_of(DiskStore& store, const Tokens& tokens) {
  auto state = std::make_unique<StateToWrite>();
  state->header.id = store.next_id();
  state->header.end = static_cast<std::uint32_t>(tokens.size());
  state->header.identity = "i";
  state->header.scope = "s";
  state->header.tokens = tokens;
  state->header.groups = {{0, static_cast<std::uint32_t>((tokens.size() - 1) / 64 + 1), 100}};
  state->pages.resize(state->header.payload_bytes());
  state->resume_point = true;
  return state;
}

TEST(DiskStore, WritesNoMoreADayThanItMay) {
  const Folder folder;
  std::atomic<std::uint64_t> now{86'400ull * 20'000};
  DiskStoreOptions options;
  options.folder = folder.path();
  options.free_bytes_min = 0;
  options.daily_bytes_max = 3000;
  options.retry = std::chrono::milliseconds(5);
  options.now_unix_seconds = [&now] { return now.load(); };
  const auto write = [&](DiskStore& store, std::int32_t first) {
    store.write(state_of(store, counting_prompt(200, first)));
    store.wait_until_written();
  };
  {
    const auto store = DiskStore::open(options, true, nullptr);
    ASSERT_NE(store, nullptr);
    write(*store, 0);
    write(*store, 1);
    EXPECT_EQ(store->counters().states, 2u);
    write(*store, 2);
    EXPECT_EQ(store->counters().states, 2u);
  }
  const auto store = DiskStore::open(options, true, nullptr);  // the day goes on after a restart
  write(*store, 3);
  EXPECT_EQ(store->counters().states, 2u);
  now += 86'400;
  EXPECT_TRUE(testing::eventually([&] { return !store->counters().is_paused; }));
  write(*store, 4);
  EXPECT_EQ(store->counters().states, 3u);
}

/// A store whose files may be told to fail, trying again after 5 ms.
DiskStoreOptions failing_options(const Folder& folder, const std::shared_ptr<FailingFiles>& files) {
  DiskStoreOptions options;
  options.folder = folder.path();
  options.free_bytes_min = 0;
  options.retry = std::chrono::milliseconds(5);
  options.files = files;
  return options;
}

/// Writes a state when the store takes one; returns how many it has then.
std::uint64_t write_one(DiskStore& store, std::int32_t first) {
  EXPECT_TRUE(testing::eventually([&] { return store.can_write(); }));
  store.write(state_of(store, counting_prompt(200, first)));
  store.wait_until_written();
  return store.counters().states;
}

TEST(DiskStore, PausesWhileTheDiskIsFullAndGoesOnAfterwards) {
  const Folder folder;
  const auto files = std::make_shared<FailingFiles>();
  DiskStoreOptions options = failing_options(folder, files);
  options.free_bytes_min = 1000;
  const auto store = DiskStore::open(options, true, nullptr);
  ASSERT_NE(store, nullptr);
  const auto write = [&](std::int32_t first) { return write_one(*store, first); };
  files->free_bytes_told = 1500;
  EXPECT_EQ(write(0), 0u);
  files->free_bytes_told = 1u << 30;
  EXPECT_EQ(write(1), 1u);
  for (std::atomic<int>* error : {&files->open_error, &files->sync_error, &files->rename_error}) {
    const std::uint64_t before = store->counters().states;
    *error = EROFS;
    EXPECT_EQ(write(2), before);
    *error = 0;
    EXPECT_EQ(write(2), before + 1);
  }
  for (const fs::path& file : folder.states()) EXPECT_EQ(file.extension(), ".state");
}

TEST(DiskStore, NothingIsAppendedBehindHalfARecord) {
  const Folder folder;
  const auto files = std::make_shared<FailingFiles>();
  const DiskStoreOptions options = failing_options(folder, files);
  {
    const auto store = DiskStore::open(options, true, nullptr);
    ASSERT_NE(store, nullptr);
    const auto write = [&](std::int32_t first) { return write_one(*store, first); };
    ASSERT_EQ(write(0), 1u);
    const auto manifest_bytes = fs::file_size(folder.path() + "/v1/MANIFEST");
    // The disk fills in the middle of the record of a state whose file is whole, and what was written can't be taken
    // back.
    files->truncate_error = EIO;
    files->bytes_left = static_cast<std::int64_t>(fs::file_size(folder.states().at(0))) + 20;
    EXPECT_EQ(write(1), 1u);
    EXPECT_EQ(fs::file_size(folder.path() + "/v1/MANIFEST"), manifest_bytes + 20);
    files->bytes_left = std::numeric_limits<std::int64_t>::max();
    EXPECT_EQ(write(2), 1u);  // there is room again, behind half a record
    EXPECT_EQ(fs::file_size(folder.path() + "/v1/MANIFEST"), manifest_bytes + 20);
    files->truncate_error = 0;
    EXPECT_EQ(write(3), 2u);
  }
  const auto store = DiskStore::open(options, true, nullptr);
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(store->counters().states, 2u);
  for (const std::int32_t first : {0, 3}) {
    EXPECT_EQ(store->resumable("i", "s", counting_prompt(200, first), 200).position, 200) << first;
  }
  EXPECT_EQ(folder.states().size(), 2u);
}

TEST(DiskStore, AManifestThatIsRewrittenIsTheOneThatIsAppendedTo) {
  // Syncing its folder after the rename fails: the new file has the name all the same.
  class Files : public FileLayer {
   public:
    int open(const std::string& path, int flags, unsigned mode) override {
      if (rewritten && (flags & O_DIRECTORY) != 0 && path.ends_with("/v1")) {
        ++refused;
        errno = EIO;
        return -1;
      }
      return FileLayer::open(path, flags, mode);
    }
    int rename(const std::string& from, const std::string& to) override {
      if (to.ends_with("MANIFEST")) rewritten = true;
      return FileLayer::rename(from, to);
    }
    std::atomic<bool> rewritten{false};
    std::atomic<int> refused{0};
  };
  const Folder folder;
  const auto files = std::make_shared<Files>();
  DiskStoreOptions options;
  options.folder = folder.path();
  options.free_bytes_min = 0;
  options.bytes_max = 60'000;
  options.daily_bytes_max = 1ull << 40;
  options.files = files;
  Tokens last;
  std::uint64_t states = 0;
  {
    const auto store = DiskStore::open(options, true, nullptr);
    for (std::int32_t i = 0; files->refused == 0 && i < 1000; ++i) {
      store->write(state_of(*store, counting_prompt(4000, i)));
      store->wait_until_written();
    }
    ASSERT_EQ(files->refused, 1);
    last = counting_prompt(4000);
    last[0] = 60;  // of no other
    store->write(state_of(*store, last));
    store->wait_until_written();
    states = store->counters().states;
  }
  const auto store = DiskStore::open(options, true, nullptr);
  EXPECT_EQ(store->counters().states, states);
  EXPECT_EQ(store->resumable("i", "s", last, 4000).position, 4000);
}

TEST(DiskStore, WhatCantBeReadIsAMiss) {
  const Folder folder;
  const auto files = std::make_shared<FailingFiles>();
  DiskStoreOptions options;
  options.folder = folder.path();
  options.free_bytes_min = 0;
  options.files = files;
  const auto store = DiskStore::open(options, true, nullptr);
  const Tokens tokens = counting_prompt(200);
  store->write(state_of(*store, tokens));
  store->wait_until_written();
  const StoredPrefix prefix = store->resumable("i", "s", tokens, 200);
  ASSERT_EQ(prefix.position, 200);
  const auto wait = [](StateRead& read) {
    while (!read.is_done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  auto read = store->read(prefix);
  wait(*read);
  EXPECT_TRUE(read->is_complete());
  const auto part = read->take();
  ASSERT_NE(part, nullptr);
  EXPECT_EQ(part->header.tokens, tokens);
  files->read_error = EIO;
  read = store->read(prefix);
  wait(*read);
  EXPECT_FALSE(read->is_complete());
  EXPECT_EQ(read->take(), nullptr);
}

TEST(DiskStore, TheManifestIsRewrittenWhenItIsMostlyHistory) {
  const Folder folder;
  DiskStoreOptions options;
  options.folder = folder.path();
  options.free_bytes_min = 0;
  options.bytes_max = 60'000;
  options.daily_bytes_max = 1ull << 40;
  {
    const auto store = DiskStore::open(options, true, nullptr);
    for (std::int32_t i = 0; i < 120; ++i) {
      store->write(state_of(*store, counting_prompt(4000, i)));
      if (i % 50 == 0) store->wait_until_written();
      while (!store->can_write()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    store->wait_until_written();
    EXPECT_GT(store->counters().states_evicted, 100u);
  }
  EXPECT_LT(fs::file_size(folder.path() + "/v1/MANIFEST"), 2u << 20);
  const auto store = DiskStore::open(options, true, nullptr);
  EXPECT_EQ(store->counters().states, folder.states().size());
  EXPECT_GE(store->counters().states, 2u);
}

}  // namespace
}  // namespace tensorfold
