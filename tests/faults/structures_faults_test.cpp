// What keeps books, while every allocation may fail: a change happens whole or not at all, and what was queued arrives
// once, in order, and whole. (engine_faults_test.cpp has the engine as a whole.)
#include <gtest/gtest.h>

#include <algorithm>
#include <new>
#include <set>

#include "engine/cache/disk_index.h"
#include "faults/faults.h"
#include "serve/stream_events.h"

namespace tensorfold {
namespace {

using testing::FaultExemption;
using testing::FaultExposure;

/// Faults on this thread alone, and only inside a FaultExposure.
class StructureFaults : public ::testing::Test {
 protected:
  void arm(std::uint32_t seed) { testing::arm_faults({3, 0, 0}, seed); }
  void TearDown() override { testing::disarm_faults(); }

  /// False when memory was short for it.
  template <typename Change>
  static bool happens(const Change& change) {
    const FaultExposure exposure;
    try {
      change();
      return true;
    } catch (const std::bad_alloc&) {
      return false;
    }
  }

  const FaultExemption exemption_;
};

StoredState segment(std::uint64_t id, std::uint64_t parent) {
  StoredState state;
  state.id = id;
  state.parent = parent;
  state.begin = parent == 0 ? 0 : 64;
  state.end = state.begin + 64;
  state.resume_point = true;
  state.file_bytes = 10;
  state.identity = "an identity too long for the string itself";
  state.scope = "s";
  state.tokens.assign(64, static_cast<std::int32_t>(id));
  return state;
}

TEST_F(StructureFaults, TheDiskIndexChangesWholeOrNotAtAll) {
  int added = 0, refused = 0, removed = 0, kept = 0;
  for (std::uint32_t seed = 1; seed <= 300; ++seed) {
    arm(seed);
    DiskIndex index(true);
    std::set<std::uint64_t> there;
    for (std::uint64_t id = 1; id <= 12; ++id) {
      const std::uint64_t parent = id > 4 && there.count(id - 4) > 0 ? id - 4 : 0;
      StoredState state = segment(id, parent);
      const bool happened = happens([&] { index.add(std::move(state)); });
      happened ? ++added : ++refused;
      if (happened) there.insert(id);
      ASSERT_EQ(index.find(id) != nullptr, happened);
      ASSERT_EQ(index.bytes(), 10 * there.size());
      ASSERT_EQ(index.written_count(), there.size());
      ASSERT_EQ(index.has_children(parent), parent != 0 && happened) << "a child that isn't there is listed";
    }
    for (const std::uint64_t id : std::set<std::uint64_t>(there)) {
      if (index.find(id) == nullptr) continue;  // it went with its parent
      std::vector<std::uint64_t> gone;
      happens([&] { gone = index.remove(id); }) ? ++removed : ++kept;
      for (const std::uint64_t each : gone) there.erase(each);
      ASSERT_EQ(index.find(id) == nullptr, !gone.empty());
      ASSERT_EQ(index.states().size(), there.size());
      ASSERT_EQ(index.written_count(), there.size());
    }
    // Every search finds what is there, and nothing else.
    for (std::uint64_t id = 1; id <= 4; ++id) {
      const StoredState state = segment(id, 0);
      ASSERT_EQ(index.resumable(state.identity, "s", state.tokens, 64).position, there.count(id) > 0 ? 64 : 0);
    }
  }
  EXPECT_GT(std::min({added, refused, removed, kept}), 20);
}

TEST_F(StructureFaults, EveryEventThatWasQueuedArrivesOnceAndWhole) {
  const std::string message = "a message that is too long for the string itself";
  int refused_pushes = 0, refused_takes = 0, refused_notices = 0;
  for (std::uint32_t seed = 1; seed <= 300; ++seed) {
    arm(seed);
    bool told = false;
    StreamEvents events([&told, &refused_notices] {
      try {
        ::operator delete(::operator new(64));  // posting needs memory, too
      } catch (const std::bad_alloc&) {
        ++refused_notices;
        throw;
      }
      told = true;
    });
    std::vector<std::int32_t> queued, arrived;
    int ends = 0;
    std::vector<StreamEvent> batch;
    const auto take = [&] {
      if (!happens([&] { events.take(batch); })) {
        ++refused_takes;
        return;
      }
      told = false;
      for (const StreamEvent& event : batch) {
        ASSERT_EQ(ends, 0) << "an event behind the end";
        if (const auto* token = std::get_if<TokenEvent>(&event)) {
          ASSERT_EQ(token->top.size(), 3u) << "half an event";
          arrived.push_back(token->token);
        } else {
          const auto& finish = std::get<FinishEvent>(event);
          ASSERT_EQ(finish.message, message) << "half an end";
          ASSERT_EQ(finish.statistics.prefill_widths.size(), 5u);
          ++ends;
        }
      }
      batch = std::vector<StreamEvent>();  // its memory would save the next take() from asking for any
    };
    for (std::int32_t i = 0; i < 40; ++i) {
      TokenEvent token;
      token.token = i;
      token.top.resize(3);
      // It is queued, and then somebody is told of it. When only the telling failed it is there all the same.
      const int notices = refused_notices;
      const bool happened = happens([&] { events.push(std::move(token)); });
      const bool is_queued = happened || refused_notices > notices;
      if (is_queued) queued.push_back(i);
      refused_pushes += is_queued ? 0 : 1;
      if (happened) {
        ASSERT_TRUE(told) << "nobody was told of event " << i;
      }
      if (i % 3 == 2) take();
    }
    FinishEvent finish;
    finish.message = message;
    finish.statistics.prefill_widths.resize(5);
    const int notices = refused_notices;
    ASSERT_TRUE(happens([&] { events.push(std::move(finish)); }) || refused_notices > notices) << "the end was lost";
    for (int i = 0; i < 200 && ends == 0; ++i) take();
    ASSERT_EQ(ends, 1);
    ASSERT_EQ(arrived, queued);
  }
  EXPECT_GT(refused_pushes, 20);
  EXPECT_GT(refused_takes, 20);
  EXPECT_GT(refused_notices, 20);
}

}  // namespace
}  // namespace tensorfold
