// A language model without arithmetic: its logits are a hash of the row's own prefix, read back through the page tables
// and the recurrent slot exactly as a real model would. It stores tokens in its pages and a hash chain, committed late,
// in its slots; a tree's rows follow their parents, and its tokens reach the pages when they are replayed. So a wrong
// page table, position or replay, a page that wasn't zeroed, or a neighbour's row gives other logits or is reported as
// a broken plan. What a real pass checks by trust, this one checks by force.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/limits.h"
#include "ops/sampler.h"
#include "model/language_model.h"

namespace tensorfold::testing {

struct FakeModelOptions {
  std::int32_t vocabulary_size = 61;
  std::int32_t context_max = 2048;
  std::int32_t pass_rows_max = 48;
  std::int32_t window = 40;   // of the sliding group
  bool has_recurrent = true;  // false: no recurrent group's state enters the logits
  bool has_sliding = true;
  std::string checkpoint_id = "fake";
  std::int32_t nan_token = -1;  // a row that feeds it has NaN logits
  bool infinities = true;       // some logits are -inf
  std::int32_t window_rows_max = limits::kWideWindowRowsMax;
  double seconds_per_pass = 0.0;
  double seconds_per_row = 0.0;
  std::function<void(const RoundPlan&)> on_forward;  // may throw, as a failing backend would
};

class FakeModel : public LanguageModel {
 public:
  explicit FakeModel(FakeModelOptions options = {}) : options_(std::move(options)) {
    facts_.family = "fake";
    facts_.family_title = "Fake";
    facts_.backend = "hash";
    facts_.vocabulary_size = options_.vocabulary_size;
    facts_.hidden_size = 8;
    facts_.context_max = options_.context_max;
    facts_.pass_rows_max = options_.pass_rows_max;
    facts_.window_rows_max = options_.window_rows_max;
    facts_.checkpoint_id = options_.checkpoint_id;
    facts_.groups = {{CacheKind::kFull, 2, 0, 4096, 0}};
    if (options_.has_recurrent) facts_.groups.push_back({CacheKind::kRecurrent, 2, 0, 0, 1024});
    if (options_.has_sliding) facts_.groups.push_back({CacheKind::kSliding, 1, options_.window, 2048, 0});
    for (std::size_t g = 0; g < facts_.groups.size(); ++g) {
      if (facts_.groups[g].page_bytes > 0) paged_groups_.push_back(g);
    }
  }

  const ModelFacts& facts() const override { return facts_; }

  void allocate_caches(const std::vector<std::int32_t>& page_counts, std::int32_t slot_count,
                       std::int32_t window_rows) override {
    window_rows_ = window_rows;
    require(pages_.empty() && page_counts.size() == facts_.groups.size(), "caches are allocated once");
    for (const std::int32_t count : page_counts) pages_.emplace_back(static_cast<std::size_t>(count));
    slots_.resize(static_cast<std::size_t>(slot_count));
  }
  void zero_page(std::int32_t group, std::int32_t page) override {
    at(group, page) = Page{};
    forget_holders(group, page);
  }
  void zero_slot(std::int32_t slot) override {
    at(slot) = Slot{};
    at(slot).stream = ++streams_;
  }
  void poison_page(std::int32_t group, std::int32_t page) override {
    at(group, page).tokens.fill(kPoison);
    at(group, page).owner = -1;
  }
  void poison_slot(std::int32_t slot) override {
    at(slot).poisoned = true;
    at(slot).tables.clear();
  }
  void copy_page(std::int32_t group, std::int32_t from, std::int32_t to) override {
    at(group, to) = at(group, from);
    at(group, to).owner = 0;  // whoever asked for the copy writes it
    forget_holders(group, to);
    ++pages_copied;
  }
  void copy_slot(std::int32_t from, std::int32_t to) override {
    const std::int32_t stream = at(to).stream;
    at(to) = at(from);
    at(to).stream = stream;
  }
  void settle(const PlanLane& lane) override { replay(lane); }
  void read_page(std::int32_t group, std::int32_t page, std::byte* out) override {
    std::memcpy(out, &at(group, page), sizeof(Page));
  }
  void write_page(std::int32_t group, std::int32_t page, const std::byte* bytes) override {
    std::memcpy(&at(group, page), bytes, sizeof(Page));
    at(group, page).owner = kForeign;
    forget_holders(group, page);
  }
  std::size_t slot_state_bytes() const override {
    return options_.has_recurrent ? sizeof(std::uint64_t) + sizeof(std::int32_t) : 0;
  }
  void read_slot(std::int32_t slot, std::byte* out) override {
    require(at(slot).window.empty(), "a slot is settled before it is read");
    run_copies();
    std::memset(out, 0xaa, slot_state_bytes());  // until the copy runs
    copies_.push_back({out, at(slot).state, at(slot).count});
  }
  std::shared_ptr<std::byte[]> allocate_snapshot() override {
    snapshots_.push_back(LanguageModel::allocate_snapshot());
    return snapshots_.back();
  }
  void finish_copies() override { run_copies(); }
  void write_slot(std::int32_t slot, const std::byte* bytes) override {
    run_copies();  // they are queued one after the other
    const std::int32_t stream = at(slot).stream;
    at(slot) = Slot{};
    at(slot).stream = stream;
    std::memcpy(&at(slot).state, bytes, sizeof(std::uint64_t));
    std::memcpy(&at(slot).count, bytes + sizeof(std::uint64_t), sizeof(std::int32_t));
  }

  void forward(const RoundPlan& plan, ForwardResult& result) override {
    if (options_.on_forward) options_.on_forward(plan);
    check(plan);
    logits_.clear();
    result = {};
    for (std::size_t lane = 0; lane < plan.lanes.size(); ++lane) run_lane(plan, plan.lanes[lane], result);
    result.logits = logits_.data();
    const double seconds = options_.seconds_per_pass + options_.seconds_per_row * static_cast<double>(plan.rows.size());
    if (seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }

  /// The logits after `text`, as a pass over all of it would give them.
  std::vector<float> logits_after(const std::vector<std::int32_t>& text) const {
    std::uint64_t full = 3, state = 1, sliding = 5;
    for (const std::int32_t token : text) {
      full = chain(full, token + 1);
      state = chain(state, token);
    }
    const std::size_t first = text.size() - std::min(text.size(), static_cast<std::size_t>(options_.window));
    for (std::size_t key = first; key < text.size(); ++key) sliding = chain(sliding, text[key] + 1);
    std::vector<float> logits;
    append_logits(chain(chain(full, static_cast<std::int64_t>(sliding)), static_cast<std::int64_t>(state)), text.back(),
                  logits);
    return logits;
  }

 protected:
  static constexpr std::int32_t kPoison = -77;
  static constexpr std::int32_t kForeign = -2;  // owner of a page that was read back: not of this process
  static constexpr std::int32_t kPageTokens = limits::kKvPageTokens;
  struct Page {
    std::array<std::int32_t, limits::kKvPageTokens> tokens{};  // token + 1; 0: nothing written
    std::int32_t owner = 0;                                    // Slot::stream of who writes it; 0: nobody yet
  };
  struct WindowRow {
    std::int32_t token = 0;
    std::int32_t parent = -1;  // row of the window
  };
  struct Slot {
    std::uint64_t state = 1;
    std::int32_t count = 0;         // tokens in `state`
    std::vector<WindowRow> window;  // the kept window
    bool window_is_tree = false;    // its tokens are in no page yet
    std::int32_t stream = 0;        // a number of its own for each time the slot is handed out
    std::vector<PageTable> tables;  // of its last pass
    bool poisoned = false;
  };
  /// What a row has seen, itself included.
  struct Path {
    std::uint64_t full = 0, state = 0;
    std::vector<std::int32_t> tokens;  // of the pass's own rows
  };

  static void require(bool condition, const char* what) {
    if (!condition) throw std::logic_error(std::string("broken plan: ") + what);
  }
  Page& at(std::int32_t group, std::int32_t page) {
    return pages_.at(static_cast<std::size_t>(group)).at(static_cast<std::size_t>(page));
  }
  Slot& at(std::int32_t slot) { return slots_.at(static_cast<std::size_t>(slot)); }
  static std::uint64_t chain(std::uint64_t hash, std::int64_t value) {
    return sampling::mix(hash * 0x9E3779B97F4A7C15u ^ static_cast<std::uint64_t>(value + 11));
  }

  void check(const RoundPlan& plan) {
    require(!plan.rows.empty() && static_cast<std::int32_t>(plan.rows.size()) <= options_.pass_rows_max, "row count");
    std::int32_t next = 0;
    std::set<std::int32_t> slots;
    for (std::size_t l = 0; l < plan.lanes.size(); ++l) {
      const PlanLane& lane = plan.lanes[l];
      require(lane.first_row == next && lane.row_count > 0, "spans cover the rows in order");
      next += lane.row_count;
      require(next <= static_cast<std::int32_t>(plan.rows.size()), "spans cover the rows in order");
      require(lane.commits || lane.row_count <= window_rows_, "window width");
      require(!is_tree(plan, lane) || (!lane.commits && lane.row_count <= limits::kTreeRowsMax), "a tree's width");
      require(lane.slot > 0 && slots.insert(lane.slot).second, "one slot a lane, never the padding slot");
      require(lane.pages.size() == facts_.groups.size(), "a page table per group");
      for (std::int32_t i = 0; i < lane.row_count; ++i) check_row(plan, lane, static_cast<std::int32_t>(l), i);
      check_pages(plan, lane);
    }
    require(next == static_cast<std::int32_t>(plan.rows.size()), "every row is in a span");
    for (const PlanLane& lane : plan.lanes) at(lane.slot).tables = lane.pages;
  }

  void check_row(const RoundPlan& plan, const PlanLane& lane, std::int32_t lane_index, std::int32_t i) const {
    const PlanRow& row = plan.rows[static_cast<std::size_t>(lane.first_row + i)];
    require(row.token >= 0 && row.token < options_.vocabulary_size, "token inside the vocabulary");
    require(row.lane == lane_index, "lane index");
    const std::int32_t parent = row.parent_row;
    require(i == 0 ? parent == -1 : parent >= lane.first_row && parent < lane.first_row + i, "parents come first");
    const std::int32_t before = i == 0 ? lane.position - 1 : plan.rows[static_cast<std::size_t>(parent)].sequence_index;
    require(row.sequence_index == before + 1, "sequence index");
    require(row.sequence_index < options_.context_max, "position inside the context");
    require(row.rope_position[0] == row.sequence_index && row.rope_position[2] == row.sequence_index, "rope position");
    require(row.embedding_row == -1 && row.adapter == -1, "no embeddings or adapters");
  }

  static bool is_tree(const RoundPlan& plan, const PlanLane& lane) {
    for (std::int32_t i = 1; i < lane.row_count; ++i) {
      const std::int32_t row = lane.first_row + i;
      if (plan.rows[static_cast<std::size_t>(row)].parent_row != row - 1) return true;
    }
    return false;
  }

  void check_pages(const RoundPlan& plan, const PlanLane& lane) {
    for (std::size_t g = 0; g < facts_.groups.size(); ++g) {
      const PageTable& table = lane.pages[g];
      if (facts_.groups[g].page_bytes == 0) {
        require(table.empty(), "no pages for a recurrent group");
        continue;
      }
      std::int32_t last = lane.position;
      for (std::int32_t i = 0; i < lane.row_count; ++i) {
        last = std::max(last, plan.rows[static_cast<std::size_t>(lane.first_row + i)].sequence_index);
      }
      require(static_cast<std::int32_t>(table.size()) > last / kPageTokens, "tables cover the last row");
      std::set<std::int32_t> seen;
      for (const std::int32_t page : table) {
        require(page != 0, "the padding page is nobody's");
        require(page < 0 || seen.insert(page).second, "a page appears once");
      }
    }
  }

  void replay(const PlanLane& lane) {
    Slot& slot = at(lane.slot);
    require(slot.window.empty() == lane.replay_rows.empty(), "a kept window is replayed, and nothing else");
    if (slot.window.empty()) return;
    require(slot.window_is_tree == lane.replay_tree, "the kept window's shape");
    require(slot.count == lane.position - static_cast<std::int32_t>(lane.replay_rows.size()), "where it began");
    std::int32_t before = -1;
    for (const std::int32_t row : lane.replay_rows) {
      require(row >= 0 && row < static_cast<std::int32_t>(slot.window.size()), "replayed rows are in the kept window");
      const WindowRow& each = slot.window[static_cast<std::size_t>(row)];
      require(each.parent == before, "replayed rows are a path from the pending token");
      before = row;
      if (slot.window_is_tree) {
        for (const std::size_t group : paged_groups_) write(lane, group, slot.count, each.token);
      }
      if (options_.has_recurrent) slot.state = chain(slot.state, each.token);
      ++slot.count;
    }
    slot.window.clear();
  }

  void write(const PlanLane& lane, std::size_t group, std::int32_t position, std::int32_t token) {
    const std::int32_t index = lane.pages[group][static_cast<std::size_t>(position / kPageTokens)];
    require(index > 0, "written keys are held");
    Page& page = at(static_cast<std::int32_t>(group), index);
    const std::int32_t stream = at(lane.slot).stream;
    if (page.owner != stream) {
      require(page.owner != -1, "a page is zeroed or copied before it is written");
      require(!is_held_by_another(lane.slot, group, index), "a page that others see is copied before it is written");
      page.owner = stream;
    }
    page.tokens[static_cast<std::size_t>(position % kPageTokens)] = token + 1;
  }

  /// A page that is handed out anew was nobody's.
  void forget_holders(std::int32_t group, std::int32_t page) {
    for (Slot& slot : slots_) {
      if (slot.tables.empty()) continue;
      PageTable& table = slot.tables[static_cast<std::size_t>(group)];
      std::replace(table.begin(), table.end(), page, -1);
    }
  }

  /// Whether another stream's tables, as its last pass had them, hold the page.
  bool is_held_by_another(std::int32_t slot, std::size_t group, std::int32_t page) const {
    for (std::size_t other = 0; other < slots_.size(); ++other) {
      if (other == static_cast<std::size_t>(slot) || slots_[other].tables.empty()) continue;
      const PageTable& table = slots_[other].tables[group];
      if (std::find(table.begin(), table.end(), page) != table.end()) return true;
    }
    return false;
  }

  std::int32_t read(const PlanLane& lane, std::size_t group, std::int32_t position) {
    const std::int32_t index = lane.pages[group][static_cast<std::size_t>(position / kPageTokens)];
    require(index > 0, "visible keys are held");
    const Page& page = at(static_cast<std::int32_t>(group), index);
    // Pages that another stream wrote may be read: what they hold shows in the logits.
    const std::int32_t token = page.tokens[static_cast<std::size_t>(position % kPageTokens)];
    require(token > 0, "visible keys are written");
    return token;
  }

  // Hash of the sliding window's tokens up to `position`: committed ones from the pages, the pass's own from the path
  // of a tree, or from the pages too where a chain has just written them.
  std::uint64_t sliding_hash(const PlanLane& lane, bool tree, const Path& path, std::int32_t position) {
    std::uint64_t hash = 5;
    if (!options_.has_sliding) return hash;
    for (std::int32_t key = std::max(0, position - options_.window + 1); key <= position; ++key) {
      const bool is_own = tree && key >= lane.position;
      hash = chain(hash, is_own ? path.tokens[static_cast<std::size_t>(key - lane.position)] + 1
                                : read(lane, paged_groups_.back(), key));
    }
    return hash;
  }

  void run_lane(const RoundPlan& plan, const PlanLane& lane, ForwardResult& result) {
    Slot& slot = at(lane.slot);
    require(!slot.poisoned, "slots are zeroed before use");
    // Without recurrent groups a slot has no state: it stands wherever the lane does.
    if (!options_.has_recurrent) slot.count = lane.position - static_cast<std::int32_t>(lane.replay_rows.size());
    replay(lane);
    require(slot.count == lane.position, "the state stands where the rows begin");
    const bool tree = is_tree(plan, lane);
    Path committed{3, slot.state, {}};
    for (std::int32_t position = 0; position < lane.position; ++position) {
      committed.full = chain(committed.full, read(lane, 0, position));
    }
    std::vector<Path> paths;
    for (std::int32_t i = 0; i < lane.row_count; ++i) {
      const PlanRow& row = plan.rows[static_cast<std::size_t>(lane.first_row + i)];
      const std::int32_t parent = i == 0 ? -1 : row.parent_row - lane.first_row;
      Path path = parent < 0 ? committed : paths[static_cast<std::size_t>(parent)];
      path.full = chain(path.full, row.token + 1);
      if (options_.has_recurrent) path.state = chain(path.state, row.token);
      path.tokens.push_back(row.token);
      if (!tree) {
        for (const std::size_t group : paged_groups_) write(lane, group, row.sequence_index, row.token);
      }
      if (!lane.commits) slot.window.push_back({row.token, parent});
      if ((row.flags & kRowWantsLogits) != 0) {
        result.logits_rows.push_back(lane.first_row + i);
        const std::uint64_t sliding = sliding_hash(lane, tree, path, row.sequence_index);
        append_logits(
            chain(chain(path.full, static_cast<std::int64_t>(sliding)), static_cast<std::int64_t>(path.state)),
            row.token, logits_);
      }
      paths.push_back(std::move(path));
    }
    slot.window_is_tree = tree;
    if (!lane.commits) return;
    slot.state = paths.back().state;
    slot.count += lane.row_count;
  }

  void append_logits(std::uint64_t prefix, std::int32_t token, std::vector<float>& logits) const {
    const bool coarse = (prefix & 1u) != 0;  // every second row has ties
    for (std::int32_t id = 0; id < options_.vocabulary_size; ++id) {
      const std::uint64_t hash = chain(prefix, id);
      float logit =
          coarse ? static_cast<float>(hash >> 60) / 4.0f - 2.0f : static_cast<float>(hash >> 44) / 131072.0f - 4.0f;
      if (options_.infinities && (hash & 63u) == 0) logit = -std::numeric_limits<float>::infinity();
      if (token == options_.nan_token && id == 5) logit = std::numeric_limits<float>::quiet_NaN();
      logits.push_back(logit);
    }
  }

  /// A copy of a slot to host memory that is still to run.
  struct SlotCopy {
    std::byte* out;
    std::uint64_t state;
    std::int32_t count;
  };
  void run_copies() {
    for (const SlotCopy& copy : copies_) {
      std::memcpy(copy.out, &copy.state, sizeof(std::uint64_t));
      std::memcpy(copy.out + sizeof(std::uint64_t), &copy.count, sizeof(std::int32_t));
    }
    copies_.clear();
  }

  FakeModelOptions options_;
  ModelFacts facts_;
  std::vector<SlotCopy> copies_;
  std::vector<std::shared_ptr<std::byte[]>> snapshots_;  // a copy may be queued into what nobody holds any more
  std::vector<std::vector<Page>> pages_;
  std::vector<Slot> slots_;
  std::vector<float> logits_;
  std::int32_t window_rows_ = 0;
  std::int32_t streams_ = 0;
  std::vector<std::size_t> paged_groups_;

 public:
  std::atomic<int> pages_copied{0};
};

}  // namespace tensorfold::testing
