// Drafters for the fake model, as strict as it is: an MTP head and a block drafter that keep what they absorbed in
// pages of their own and know a stream by that alone. A row that is absorbed twice, late, at a wrong place, from a
// rejected branch or for a neighbour leaves them with another text, and then their drafts don't land; what can be
// checked against the pass is reported as a broken contract. Where a draft shall miss, the test says so.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "fake_model.h"

namespace tensorfold::testing {

struct FakeHeadsOptions {
  FakeModelOptions model;
  bool mtp = true;
  bool block = false;
  bool selector = true;  // of the block drafter
  std::int32_t mtp_depth = 5;
  std::int32_t block_window = 48;  // rows of context that a block sees
  /// Whether drafts of the token at this absolute index shall be wrong.
  std::function<bool(std::int64_t position)> misses = [](std::int64_t) { return false; };
  /// What comes after a text that ends like this (the block drafter can't read more); -1: unknown.
  std::function<std::int32_t(const std::vector<std::int32_t>& text_end, std::int64_t position)> next_token;
  std::function<void()> on_absorb;  // may throw
};

class FakeDraftingModel : public FakeModel {
 public:
  explicit FakeDraftingModel(FakeHeadsOptions options)
      : FakeModel(options.model), heads_(std::move(options)), mtp_(*this), block_(*this) {
    mtp_group_ = static_cast<std::int32_t>(facts_.groups.size());
    facts_.groups.push_back({CacheKind::kFull, 1, 0, 1024, 0});
    facts_.groups.back().draft = true;
    block_group_ = mtp_group_ + 1;
    facts_.groups.push_back({CacheKind::kSliding, 1, heads_.block_window, 1024, 0});
    facts_.groups.back().draft = true;
  }

  MtpHead* mtp_head() override { return heads_.mtp ? &mtp_ : nullptr; }
  BlockDrafter* block_drafter() override { return heads_.block ? &block_ : nullptr; }

  void forward(const RoundPlan& plan, ForwardResult& result) override {
    last_plan_ = plan;
    FakeModel::forward(plan, result);
  }

  std::atomic<int> mtp_absorbs{0}, mtp_pairs{0}, mtp_steps{0}, blocks{0};

 private:
  class Mtp : public MtpHead {
   public:
    explicit Mtp(FakeDraftingModel& model) : model_(model) {}
    std::int32_t depth_max() const override { return model_.heads_.mtp_depth; }
    void absorb(const std::vector<AbsorbLane>& lanes, DraftLogits& result) override { model_.absorb(lanes, result); }
    void step(const std::vector<Step>& steps, DraftLogits& result) override { model_.step(steps, result); }

   private:
    FakeDraftingModel& model_;
  };

  class Block : public BlockDrafter {
   public:
    explicit Block(FakeDraftingModel& model) : model_(model) {}
    std::int32_t block_rows() const override { return 8; }
    std::int32_t block_rows_max() const override { return 16; }
    bool has_selector() const override { return model_.heads_.selector; }
    void absorb(const std::vector<AbsorbLane>& lanes) override { model_.absorb_context(lanes); }
    void propose(const std::vector<BlockDrafter::Block>& blocks, std::vector<BlockCandidates>& result) override {
      model_.propose(blocks, result);
    }
    void pair_scores(const BlockCandidates& candidates, std::int32_t depth, std::int32_t predecessor,
                     float* scores) const override {
      (void)depth, (void)predecessor;
      std::fill_n(scores, candidates.candidate_count, 0.0f);
    }

   private:
    FakeDraftingModel& model_;
  };

  static constexpr std::int32_t kUnknown = -1;

  void check_absorbed(const AbsorbLane& lane, std::uint32_t flag) const {
    require(!lane.rows.empty() && lane.pages != nullptr, "rows to absorb, and their pages");
    std::int32_t before = -1;
    for (const AbsorbRow& row : lane.rows) {
      require(row.pass_row > before && row.pass_row < static_cast<std::int32_t>(last_plan_.rows.size()),
              "absorbed rows are of the last pass, ascending");
      before = row.pass_row;
      const PlanRow& fed = last_plan_.rows[static_cast<std::size_t>(row.pass_row)];
      require((fed.flags & flag) != 0, "absorbed rows were kept");
      require(fed.sequence_index == row.position, "an absorbed row's position");
      require(last_plan_.lanes[static_cast<std::size_t>(fed.lane)].slot == lane.slot, "an absorbed row's lane");
      require(row.position == lane.rows[0].position + (&row - lane.rows.data()), "absorbed rows follow each other");
    }
  }

  void put(const std::vector<PageTable>& pages, std::int32_t group, std::int32_t position, std::int32_t value,
           std::int32_t slot) {
    PlanLane lane;
    lane.slot = slot;
    lane.pages = pages;
    write(lane, static_cast<std::size_t>(group), position, value);
  }
  std::int32_t get(const std::vector<PageTable>& pages, std::int32_t group, std::int32_t position) {
    const PageTable& table = pages[static_cast<std::size_t>(group)];
    const auto index = static_cast<std::size_t>(position / limits::kKvPageTokens);
    if (index >= table.size() || table[index] <= 0) return kUnknown;
    return at(group, table[index]).tokens[static_cast<std::size_t>(position % limits::kKvPageTokens)] - 1;
  }

  // --- the MTP head: pair i holds token i + 1

  /// The text that the pairs up to `last` tell: token 0 from the model's own pages.
  std::vector<std::int32_t> text_of(const std::vector<PageTable>& pages, std::int32_t last) {
    std::vector<std::int32_t> text = {get(pages, 0, 0)};
    for (std::int32_t i = 0; i <= last; ++i) text.push_back(get(pages, mtp_group_, i));
    return text;
  }

  void absorb(const std::vector<AbsorbLane>& lanes, DraftLogits& result) {
    if (heads_.on_absorb) heads_.on_absorb();
    ++mtp_absorbs;
    begin(result);
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      const AbsorbLane& lane = lanes[i];
      check_absorbed(lane, kRowWantsHidden);
      for (const AbsorbRow& row : lane.rows) put(*lane.pages, mtp_group_, row.position, row.next_token, lane.slot);
      mtp_pairs += static_cast<int>(lane.rows.size());
      if (lane.wants_result) add(text_of(*lane.pages, lane.rows.back().position), static_cast<std::int32_t>(i), result);
    }
    end(result);
  }

  void step(const std::vector<MtpHead::Step>& steps, DraftLogits& result) {
    ++mtp_steps;
    const std::vector<std::vector<std::int32_t>> before = entry_texts_;
    begin(result);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      std::vector<std::int32_t> text = before.at(static_cast<std::size_t>(steps[i].source));
      text.push_back(steps[i].token);
      require(steps[i].position == static_cast<std::int32_t>(text.size()) - 2, "a step's position");
      put(*steps[i].pages, mtp_group_, steps[i].position, steps[i].token, steps[i].slot);
      add(std::move(text), static_cast<std::int32_t>(i), result);
    }
    end(result);
  }

  void begin(DraftLogits& result) {
    result = {};
    draft_logits_.clear();
    entry_texts_.clear();
  }
  void add(std::vector<std::int32_t> text, std::int32_t entry, DraftLogits& result) {
    std::vector<float> logits = logits_after(text);
    if (heads_.misses(static_cast<std::int64_t>(text.size())))
      std::rotate(logits.begin(), logits.begin() + 1, logits.end());
    draft_logits_.insert(draft_logits_.end(), logits.begin(), logits.end());
    entry_texts_.push_back(std::move(text));
    result.entries.push_back(entry);
  }
  void end(DraftLogits& result) const { result.logits = draft_logits_.data(); }

  // --- the block drafter: row i holds token i

  void absorb_context(const std::vector<AbsorbLane>& lanes) {
    if (heads_.on_absorb) heads_.on_absorb();
    for (const AbsorbLane& lane : lanes) {
      check_absorbed(lane, kRowIsTapped);
      for (const AbsorbRow& row : lane.rows) {
        put(*lane.pages, block_group_, row.position, last_plan_.rows[static_cast<std::size_t>(row.pass_row)].token,
            lane.slot);
      }
    }
  }

  void propose(const std::vector<BlockDrafter::Block>& asked, std::vector<BlockCandidates>& result) {
    result.clear();
    for (const BlockDrafter::Block& block : asked) {
      ++blocks;
      std::vector<std::int32_t> text;
      for (std::int32_t i = std::max(0, block.position - heads_.block_window + 1); i < block.position; ++i) {
        text.push_back(get(*block.pages, block_group_, i));
        require(text.back() != kUnknown, "a block's context is absorbed");
      }
      text.push_back(block.pending_token);
      BlockCandidates candidates;
      candidates.depth_count = block.row_count - 1;
      candidates.candidate_count = 4;
      for (std::int32_t depth = 0; depth < candidates.depth_count; ++depth) {
        const std::int64_t position = block.position + 1 + depth;
        std::int32_t token = heads_.next_token ? heads_.next_token(text, position) : kUnknown;
        if (token == kUnknown) token = 0;
        const std::int32_t vocabulary = facts_.vocabulary_size;
        // The right one first; where it shall miss, second: a tree finds it there, a chain doesn't.
        std::vector<std::int32_t> ids = {token, (token + 1) % vocabulary, (token + 2) % vocabulary,
                                         (token + 3) % vocabulary};
        if (heads_.misses(position)) std::swap(ids[0], ids[1]);
        const bool is_close = heads_.selector && heads_.misses(position);
        candidates.tokens.insert(candidates.tokens.end(), ids.begin(), ids.end());
        for (const float unary : {30.0f, is_close ? 29.5f : 10.0f, -10.0f, -20.0f}) candidates.unary.push_back(unary);
        text.push_back(token);
      }
      result.push_back(std::move(candidates));
    }
  }

  FakeHeadsOptions heads_;
  std::int32_t mtp_group_ = 0, block_group_ = 0;
  Mtp mtp_;
  Block block_;
  RoundPlan last_plan_;
  std::vector<float> draft_logits_;
  std::vector<std::vector<std::int32_t>> entry_texts_;
};

}  // namespace tensorfold::testing
