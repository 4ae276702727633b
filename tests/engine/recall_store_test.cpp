// The recall store on disk and in memory: what was written is found again, also after a crash, a kill at any moment,
// damage and a full disk; what one scope wrote is never found by another; caps and permissions hold.
#include "engine/draft/recall_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/limits.h"
#include "base/temporary_folder.h"

namespace tensorfold {
namespace {

namespace fs = std::filesystem;
using Tokens = std::vector<std::int32_t>;

constexpr std::int32_t kVocabulary = 50'000;
constexpr RecallIdentity kIdentity = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

Tokens random_text(std::size_t length, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Tokens tokens(length);
  for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random() % kVocabulary);
  return tokens;
}

class RecallStoreTest : public ::testing::Test {
 protected:
  RecallOptions options() const {
    RecallOptions options;
    options.folder = root_ / "recall";
    options.bytes_max = limits::kRecallBytesMin;
    options.identity = kIdentity;
    options.vocabulary_size = kVocabulary;
    return options;
  }
  fs::path folder() const { return root_ / "recall" / "0102030405060708090a0b0c0d0e0f10"; }
  std::vector<fs::path> segments() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(folder())) {
      if (entry.path().extension() == ".recall1") files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    return files;
  }
  std::uint64_t bytes_on_disk() const {
    std::uint64_t bytes = 0;
    for (const fs::path& file : segments()) bytes += fs::file_size(file);
    return bytes;
  }

  const TemporaryFolder temporary_;
  const fs::path root_ = temporary_.path();
};

Tokens continuation(const RecallStore& store, const RecallScope& scope, std::span<const std::int32_t> text,
                    std::size_t length) {
  Tokens tokens(length);
  std::size_t count = 0;
  store.look_up(scope, text, {}, {}, tokens, count);
  tokens.resize(count);
  return tokens;
}

/// Share of the places of `text` from which the store knows the next token.
double known_share(const RecallStore& store, const RecallScope& scope, const Tokens& text) {
  std::size_t known = 0, asked = 0;
  for (std::size_t at = RecallIndex::kGramTokens; at < text.size(); ++at, ++asked) {
    const Tokens next = continuation(store, scope, std::span(text).first(at), 1);
    known += !next.empty() && next[0] == text[at] ? 1 : 0;
  }
  return static_cast<double>(known) / static_cast<double>(asked);
}

std::vector<std::byte> read_bytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::vector<std::byte> result(bytes.size());
  std::memcpy(result.data(), bytes.data(), bytes.size());
  return result;
}

void write_bytes(const fs::path& path, std::span<const std::byte> bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

const RecallScope kOne = recall_scope("one"), kTwo = recall_scope("two");

TEST(RecallSegment, FindsWholeRecordsWhereverItIsCutOrDamaged) {
  const std::vector<Tokens> texts = {random_text(20, 1), random_text(9, 2), random_text(33, 3)};
  std::vector<std::byte> bytes = recall_header(7, kIdentity);
  std::vector<std::size_t> ends;
  for (const Tokens& text : texts) {
    append_recall_record(bytes, kOne, text);
    ends.push_back(bytes.size());
  }
  const auto tokens_of = [](std::span<const std::byte> from, const RecallRecord& record) {
    Tokens tokens(record.token_count);
    std::memcpy(tokens.data(), from.data() + record.tokens_at, record.token_count * 4);
    return tokens;
  };
  for (std::size_t size = 0; size <= bytes.size(); ++size) {
    const auto cut = std::span(bytes).first(size);
    const RecallScan scan = scan_recall_segment(cut, kIdentity, kVocabulary);
    ASSERT_EQ(scan.is_segment, size >= kRecallHeaderBytes);
    if (!scan.is_segment) continue;
    EXPECT_EQ(scan.segment_number, 7u);
    const auto whole = std::count_if(ends.begin(), ends.end(), [size](std::size_t end) { return end <= size; });
    ASSERT_EQ(scan.records.size(), static_cast<std::size_t>(whole)) << size;
    for (std::size_t i = 0; i < scan.records.size(); ++i) EXPECT_EQ(tokens_of(cut, scan.records[i]), texts[i]);
    EXPECT_EQ(scan.valid_end, whole == 0 ? kRecallHeaderBytes : ends[static_cast<std::size_t>(whole) - 1]);
    EXPECT_EQ(scan.damaged_bytes, 0u);
  }
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    std::vector<std::byte> damaged = bytes;
    damaged[at] ^= std::byte{0x10};
    const RecallScan scan = scan_recall_segment(damaged, kIdentity, kVocabulary);
    ASSERT_EQ(scan.is_segment, at >= kRecallHeaderBytes) << at;
    if (!scan.is_segment) continue;
    ASSERT_EQ(scan.records.size(), texts.size() - 1) << at;
    for (const RecallRecord& record : scan.records) {
      const Tokens tokens = tokens_of(damaged, record);
      EXPECT_NE(std::find(texts.begin(), texts.end(), tokens), texts.end()) << at;
    }
  }
}

TEST(RecallSegment, RefusesAnotherTokenizersFileAndIdsOutsideTheVocabulary) {
  std::vector<std::byte> bytes = recall_header(1, kIdentity);
  append_recall_record(bytes, kOne, Tokens{5, 6, 99, 7});
  append_recall_record(bytes, kOne, Tokens{5, 6, 98, 7});
  append_recall_record(bytes, kOne, Tokens{5, -1, 98, 7});
  EXPECT_FALSE(scan_recall_segment(bytes, RecallIdentity{}, 100).is_segment);
  EXPECT_EQ(scan_recall_segment(bytes, kIdentity, 100).records.size(), 2u);
  EXPECT_EQ(scan_recall_segment(bytes, kIdentity, 99).records.size(), 1u);
}

TEST(RecallIndexTest, TakesTheLongerMatchAndForgetsDroppedSegments) {
  RecallIndex index(limits::kRecallBytesMin);
  const Tokens tail = random_text(8, 1), before = random_text(20, 2);
  Tokens long_text = before, short_text = {1, 2, 3};
  long_text.insert(long_text.end(), tail.begin(), tail.end());
  short_text.insert(short_text.end(), tail.begin(), tail.end());
  const Tokens text = long_text;
  long_text.push_back(111);
  short_text.push_back(222);
  index.begin_segment(1);
  index.append(kOne, long_text);
  index.begin_segment(2);
  index.append(kOne, short_text);
  RecallIndex::Place place = index.find(kOne, text);
  EXPECT_EQ(place.match_length, 28);
  ASSERT_EQ(index.read(kOne, place, 5).size(), 1u);
  EXPECT_EQ(index.read(kOne, place, 5)[0], 111);
  EXPECT_TRUE(index.read(kTwo, place, 5).empty());
  EXPECT_EQ(index.find(kTwo, text).segment, 0u);

  index.drop_segment(1);
  EXPECT_TRUE(index.read(kOne, place, 5).empty());
  place = index.find(kOne, text);
  EXPECT_EQ(place.match_length, 8);
  EXPECT_EQ(index.read(kOne, place, 5)[0], 222);
  index.drop_segment(2);
  EXPECT_EQ(index.find(kOne, text).segment, 0u);
  EXPECT_EQ(index.token_count(), 0u);
}

TEST(RecallIndexTest, FollowsAPlaceAlongItsRecord) {
  RecallIndex index(limits::kRecallBytesMin);
  const Tokens text = random_text(30, 1);
  index.begin_segment(1);
  index.append(kOne, text);
  RecallIndex::Place place = index.find(kOne, std::span(text).first(10));
  ASSERT_EQ(place.match_length, 10);
  place = index.follow(kOne, place, std::span(text).subspan(10, 5));
  EXPECT_EQ(place.match_length, 15);
  EXPECT_EQ(index.read(kOne, place, 100).size(), 15u);
  EXPECT_EQ(index.follow(kTwo, place, std::span(text).subspan(15, 5)).segment, 0u);
  EXPECT_EQ(index.follow(kOne, place, std::span(text).subspan(16, 5)).segment, 0u);
  place = index.follow(kOne, place, std::span(text).subspan(15, 15));
  EXPECT_TRUE(index.read(kOne, place, 100).empty()) << "nothing stands after a record's end";
}

TEST_F(RecallStoreTest, FindsWhatItWroteAlsoAfterOpeningAgain) {
  const Tokens text = random_text(10'000, 1);  // three records
  {
    RecallStore store(options());
    EXPECT_EQ(continuation(store, kOne, std::span(text).first(100), 5).size(), 0u);
    store.record(kOne, text);
    store.flush();
    EXPECT_EQ(known_share(store, kOne, text), 1.0);
    EXPECT_EQ(continuation(store, kOne, std::span(text).first(100), 5), Tokens(text.begin() + 100, text.begin() + 105));
  }
  RecallStore store(options());
  EXPECT_EQ(known_share(store, kOne, text), 1.0);
  EXPECT_EQ(known_share(store, kTwo, text), 0.0);
  EXPECT_EQ(continuation(store, kTwo, std::span(text).first(100), 5).size(), 0u);
}

TEST_F(RecallStoreTest, WritesOnlyWhatItDoesNotKnow) {
  RecallStore store(options());
  Tokens conversation = random_text(3000, 1);
  store.record(kOne, conversation);
  store.flush();
  const std::size_t first = store.token_count();
  for (std::uint64_t turn = 0; turn < 10; ++turn) {
    const Tokens more = random_text(50, 100 + turn);
    conversation.insert(conversation.end(), more.begin(), more.end());
    store.record(kOne, conversation);
    store.flush();
  }
  EXPECT_LE(store.token_count(), first + 10 * (50 + 16));
  EXPECT_EQ(known_share(store, kOne, conversation), 1.0);

  // A known text between two new ones.
  Tokens mixed = random_text(100, 7);
  mixed.insert(mixed.end(), conversation.begin() + 500, conversation.begin() + 2500);
  const Tokens end = random_text(100, 8);
  mixed.insert(mixed.end(), end.begin(), end.end());
  const std::size_t before = store.token_count();
  store.record(kOne, mixed);
  store.flush();
  EXPECT_LE(store.token_count(), before + 200 + 32);
  EXPECT_GT(known_share(store, kOne, mixed), 0.999);

  // Another scope has to be told all of it again.
  store.record(kTwo, conversation);
  store.flush();
  EXPECT_EQ(known_share(store, kTwo, conversation), 1.0);
}

TEST_F(RecallStoreTest, OldestLeaveAtTheCap) {
  constexpr std::uint64_t kTexts = 30;
  constexpr std::size_t kLength = 100'000;
  {
    RecallStore store(options());
    for (std::uint64_t seed = 0; seed < kTexts; ++seed) {
      store.record(kOne, random_text(kLength, seed));
      store.flush();
      ASSERT_LE(bytes_on_disk(), limits::kRecallBytesMin);
    }
    EXPECT_LE(store.token_count() * 4, limits::kRecallBytesMin);
    EXPECT_GT(bytes_on_disk(), limits::kRecallBytesMin / 2);
  }
  RecallStore store(options());
  const auto end_is_known = [&store](std::uint64_t seed) {
    const Tokens text = random_text(kLength, seed);
    return !continuation(store, kOne, std::span(text).subspan(kLength - 100, 50), 5).empty();
  };
  EXPECT_TRUE(end_is_known(kTexts - 1));
  EXPECT_TRUE(end_is_known(kTexts - 5));
  EXPECT_FALSE(end_is_known(0));
  EXPECT_FALSE(end_is_known(kTexts - 15));
}

TEST_F(RecallStoreTest, ALoweredCapHoldsAtOpening) {
  RecallOptions large = options();
  large.bytes_max = 4 * limits::kRecallBytesMin;
  {
    RecallStore store(large);
    for (std::uint64_t seed = 0; seed < 30; ++seed) store.record(kOne, random_text(100'000, seed));
    store.flush();
    EXPECT_GT(bytes_on_disk(), 2 * limits::kRecallBytesMin);
  }
  RecallStore store(options());
  EXPECT_LE(bytes_on_disk(), limits::kRecallBytesMin);
  const Tokens last = random_text(100'000, 29);
  EXPECT_FALSE(continuation(store, kOne, std::span(last).subspan(99'900, 50), 5).empty());
}

TEST_F(RecallStoreTest, ReadOnlyWritesNothing) {
  RecallOptions read_only = options();
  read_only.read_only = true;
  {
    RecallStore store(read_only);
    store.record(kOne, random_text(1000, 1));
    store.flush();
  }
  EXPECT_FALSE(fs::exists(root_ / "recall")) << "not even a folder";
  const Tokens text = random_text(1000, 2);
  {
    RecallStore store(options());
    store.record(kOne, text);
  }
  const std::uint64_t before = bytes_on_disk();
  RecallStore store(read_only);
  EXPECT_TRUE(store.is_read_only());
  EXPECT_EQ(known_share(store, kOne, text), 1.0);
  store.record(kOne, random_text(1000, 3));
  store.flush();
  EXPECT_EQ(bytes_on_disk(), before);
}

TEST_F(RecallStoreTest, OneWriterAFolder) {
  RecallStore writer(options());
  writer.record(kOne, random_text(100, 1));
  writer.flush();
  const std::uint64_t before = bytes_on_disk();
  RecallStore second(options());
  EXPECT_FALSE(writer.is_read_only());
  EXPECT_TRUE(second.is_read_only());
  second.record(kOne, random_text(100, 2));
  second.flush();
  EXPECT_EQ(bytes_on_disk(), before);
}

TEST_F(RecallStoreTest, IsPrivateToItsUser) {
  {
    RecallStore store(options());
    store.record(kOne, random_text(100, 1));
  }
  struct stat status {};
  for (const fs::path& path : {root_ / "recall", folder()}) {
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0700u) << path;
  }
  for (const fs::path& path : segments()) {
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u) << path;
  }
  ASSERT_EQ(::chmod(folder().c_str(), 0755), 0);
  { RecallStore store(options()); }
  ASSERT_EQ(::stat(folder().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u) << "an opened folder is closed again";
}

TEST_F(RecallStoreTest, FollowsNoLinks) {
  const Tokens text = random_text(100, 1);
  {
    RecallStore store(options());
    store.record(kOne, text);
  }
  const fs::path file = segments().at(0), elsewhere = root_ / "elsewhere";
  fs::rename(file, elsewhere);
  fs::create_symlink(elsewhere, file);
  {
    RecallStore store(options());
    EXPECT_EQ(continuation(store, kOne, std::span(text).first(50), 5).size(), 0u);
    store.record(kOne, random_text(100, 2));
  }
  const std::vector<std::byte> kept = read_bytes(elsewhere);
  EXPECT_GT(kept.size(), 400u) << "what a link points to stays";

  fs::rename(folder(), root_ / "moved");
  fs::create_directory_symlink(root_ / "moved", folder());
  EXPECT_THROW(std::make_unique<RecallStore>(options()), Error);
}

TEST_F(RecallStoreTest, SaysWhenTheFolderCannotBeMade) {
  write_bytes(root_ / "recall", std::vector<std::byte>(3));
  try {
    RecallStore store(options());
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("--recall-dir"), std::string::npos) << error.what();
  }
}

TEST_F(RecallStoreTest, DamageCostsOnlyWhatItHit) {
  std::vector<Tokens> texts;
  {
    RecallStore store(options());
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      texts.push_back(random_text(200, seed));
      store.record(kOne, texts.back());
    }
  }
  const fs::path file = segments().at(0);
  const std::vector<std::byte> whole = read_bytes(file);
  std::mt19937_64 random(5);
  for (int round = 0; round < 30; ++round) {
    std::vector<std::byte> damaged = whole;
    const std::size_t at = kRecallHeaderBytes + random() % (damaged.size() - kRecallHeaderBytes);
    for (std::size_t i = at; i < std::min(at + 40, damaged.size()); ++i) damaged[i] = static_cast<std::byte>(random());
    write_bytes(file, damaged);
    RecallStore store(options());
    int known = 0;
    for (const Tokens& text : texts) {
      const double share = known_share(store, kOne, text);
      EXPECT_TRUE(share == 0.0 || share == 1.0);
      known += share == 1.0 ? 1 : 0;
    }
    EXPECT_GE(known, 18);
    EXPECT_LT(known, 20);
  }
}

TEST_F(RecallStoreTest, ATornEndIsCutAndWritingGoesOn) {
  const Tokens first = random_text(200, 1), second = random_text(200, 2);
  {
    RecallStore store(options());
    store.record(kOne, first);
  }
  const fs::path file = segments().at(0);
  const std::vector<std::byte> whole = read_bytes(file);
  for (const std::size_t torn : {std::size_t{1}, std::size_t{31}, std::size_t{33}, std::size_t{500}}) {
    std::vector<std::byte> bytes = whole;
    append_recall_record(bytes, kOne, random_text(200, 9));
    bytes.resize(whole.size() + torn);
    write_bytes(file, bytes);
    {
      RecallStore store(options());
      EXPECT_EQ(fs::file_size(file), whole.size());
      store.record(kOne, second);
    }
    RecallStore store(options());
    EXPECT_EQ(known_share(store, kOne, first), 1.0);
    EXPECT_EQ(known_share(store, kOne, second), 1.0);
  }
}

TEST_F(RecallStoreTest, LeftoversOfARotationAreRemoved) {
  { RecallStore store(options()); }
  write_bytes(folder() / "0000000000000001.recall1.part", std::vector<std::byte>(10));
  write_bytes(folder() / "0000000000000005.recall1", std::vector<std::byte>(10));
  write_bytes(folder() / "unrelated", std::vector<std::byte>(10));
  RecallStore store(options());
  EXPECT_FALSE(fs::exists(folder() / "0000000000000001.recall1.part"));
  EXPECT_FALSE(fs::exists(folder() / "0000000000000005.recall1"));
  EXPECT_TRUE(fs::exists(folder() / "unrelated"));
  store.record(kOne, random_text(100, 1));
  store.flush();
  EXPECT_EQ(segments().size(), 1u);
}

/// Runs `work` in a process of its own.
template <typename Work>
pid_t in_child(Work&& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    work();
    ::_exit(0);
  }
  return child;
}

// Texts of the killed writer: a function of their number, so that whatever survives can be checked.
Tokens numbered_text(std::uint64_t number) {
  return random_text(100 + number * 37 % 5000, 1000 + number);
}

TEST_F(RecallStoreTest, SurvivesKillsAtAnyMoment) {
  RecallOptions roomy = options();
  roomy.bytes_max = 64u << 20;  // nothing leaves
  std::mt19937_64 random(1);
  std::uint64_t next = 0;
  std::size_t found_before = 0;
  const int rounds = std::getenv("TENSORFOLD_LONG") != nullptr ? 500 : 40;
  for (int round = 0; round < rounds; ++round) {
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    const pid_t child = in_child([&roomy, next, &pipe] {
      RecallStore store(roomy);
      for (std::uint64_t number = next;; ++number) {
        store.record(kOne, numbered_text(number));
        store.flush();
        if (::write(pipe[1], "x", 1) != 1) ::_exit(1);
      }
    });
    ASSERT_GT(child, 0);
    ::close(pipe[1]);
    // Some texts, and then at any moment of the next ones.
    for (std::uint64_t texts = random() % 12; texts > 0; --texts) {
      char done = 0;
      ASSERT_EQ(::read(pipe[0], &done, 1), 1);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    ::kill(child, SIGKILL);
    ::close(pipe[0]);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);

    // Every record that stands is one of ours, whole; the last file has no torn end after opening.
    const RecallStore store(roomy);
    ASSERT_FALSE(store.is_read_only());
    std::size_t records = 0;
    if (fs::exists(folder())) {
      for (const fs::path& file : segments()) {
        const std::vector<std::byte> bytes = read_bytes(file);
        const RecallScan scan = scan_recall_segment(bytes, kIdentity, kVocabulary);
        ASSERT_TRUE(scan.is_segment);
        ASSERT_EQ(scan.damaged_bytes, 0u);
        ASSERT_EQ(scan.valid_end, bytes.size());
        records += scan.records.size();
      }
    }
    ASSERT_GE(records, found_before) << "what was written before a kill stays";
    found_before = records;
    for (;; ++next) {
      const Tokens text = numbered_text(next);
      const Tokens found = continuation(store, kOne, std::span(text).first(50), 1);
      if (found.empty()) break;
      ASSERT_EQ(found[0], text[50]);
    }
  }
  EXPECT_GT(next, 100u);
}

TEST_F(RecallStoreTest, AFullDiskPausesRecordingOnly) {
  const pid_t child = in_child([this] {
    std::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{};
    limit.rlim_cur = limit.rlim_max = 20'000;  // as a disk with that much room for a file
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(1);
    RecallStore store(options());
    const Tokens small = random_text(500, 1);
    store.record(kOne, small);
    store.flush();
    store.record(kOne, random_text(20'000, 2));
    store.flush();
    store.record(kOne, random_text(500, 3));
    store.flush();
    if (known_share(store, kOne, small) != 1.0) ::_exit(2);
    if (known_share(store, kOne, random_text(500, 3)) != 0.0) ::_exit(3);
  });
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  RecallStore store(options());
  EXPECT_EQ(known_share(store, kOne, random_text(500, 1)), 1.0);
  const std::vector<std::byte> bytes = read_bytes(segments().at(0));
  EXPECT_EQ(scan_recall_segment(bytes, kIdentity, kVocabulary).valid_end, bytes.size()) << "no half record is left";
  store.record(kOne, random_text(500, 3));
  store.flush();
  EXPECT_EQ(known_share(store, kOne, random_text(500, 3)), 1.0);
}

TEST_F(RecallStoreTest, TooMuchAtOnceIsDroppedNotQueued) {
  RecallStore store(options());
  const Tokens text = random_text(limits::kRecallQueueTokensMax / 4 + 1, 1);
  for (int i = 0; i < 20; ++i) store.record(kOne, text);  // returns at once, whatever the disk does
  store.flush();
  EXPECT_LE(bytes_on_disk(), limits::kRecallBytesMin);
}

TEST_F(RecallStoreTest, SearchesWhileItWrites) {
  RecallStore store(options());
  const Tokens known = random_text(5000, 1);
  store.record(kOne, known);
  store.flush();
  for (std::uint64_t seed = 10; seed < 20; ++seed) store.record(kOne, random_text(50'000, seed));
  std::size_t found = 0;
  for (std::size_t at = 8; at < known.size(); ++at) {
    const Tokens next = continuation(store, kOne, std::span(known).first(at), 4);
    if (next.empty()) continue;
    EXPECT_EQ(next[0], known[at]);
    ++found;
  }
  EXPECT_GT(found, 0u);
}

}  // namespace
}  // namespace tensorfold
