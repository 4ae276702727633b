// A loaded model lent to one engine after another. An Engine owns its model and takes it along when it ends; verifying
// and measuring start many engines, and packing the weights anew for each would take longer than the rest. Each
// borrower allocates the caches afresh (LanguageModel::allocate_caches), so nothing of the one before is left.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "model/language_model.h"

namespace tensorfold {

class BorrowedModel final : public LanguageModel {
 public:
  explicit BorrowedModel(std::shared_ptr<LanguageModel> model) : model_(std::move(model)) {}

  const ModelFacts& facts() const override { return model_->facts(); }
  MemoryAvailable memory_available() const override { return model_->memory_available(); }
  void warm_up(std::int32_t pass_rows) override { model_->warm_up(pass_rows); }
  void allocate_caches(const std::vector<std::int32_t>& page_counts, std::int32_t slot_count,
                       std::int32_t window_rows) override {
    model_->allocate_caches(page_counts, slot_count, window_rows);
  }
  void reserve_passes(std::int32_t pass_rows, std::int32_t lanes, std::int32_t logits_rows) override {
    model_->reserve_passes(pass_rows, lanes, logits_rows);
  }
  void zero_page(std::int32_t group, std::int32_t page) override { model_->zero_page(group, page); }
  void zero_slot(std::int32_t slot) override { model_->zero_slot(slot); }
  void copy_page(std::int32_t group, std::int32_t from, std::int32_t to) override {
    model_->copy_page(group, from, to);
  }
  void copy_slot(std::int32_t from, std::int32_t to) override { model_->copy_slot(from, to); }
  void poison_page(std::int32_t group, std::int32_t page) override { model_->poison_page(group, page); }
  void poison_slot(std::int32_t slot) override { model_->poison_slot(slot); }
  void settle(const PlanLane& lane) override { model_->settle(lane); }
  void read_page(std::int32_t group, std::int32_t page, std::byte* out) override {
    model_->read_page(group, page, out);
  }
  void write_page(std::int32_t group, std::int32_t page, const std::byte* bytes) override {
    model_->write_page(group, page, bytes);
  }
  std::size_t slot_state_bytes() const override { return model_->slot_state_bytes(); }
  void read_slot(std::int32_t slot, std::byte* out) override { model_->read_slot(slot, out); }
  void write_slot(std::int32_t slot, const std::byte* bytes) override { model_->write_slot(slot, bytes); }
  std::shared_ptr<std::byte[]> allocate_snapshot() override { return model_->allocate_snapshot(); }
  void finish_copies() override { model_->finish_copies(); }
  std::vector<ops::PassTime> take_pass_times() override { return model_->take_pass_times(); }
  MtpHead* mtp_head() override { return model_->mtp_head(); }
  BlockDrafter* block_drafter() override { return model_->block_drafter(); }
  void forward(const RoundPlan& plan, ForwardResult& result) override { model_->forward(plan, result); }
  void forward_beside(const RoundPlan& plan, ForwardResult& result, const std::function<void()>& host_work) override {
    model_->forward_beside(plan, result, host_work);
  }
  const float* logits_row(const ForwardResult& result, std::size_t index) override {
    return model_->logits_row(result, index);
  }

 private:
  std::shared_ptr<LanguageModel> model_;
};

}  // namespace tensorfold
