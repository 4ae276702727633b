// Copying kept prefixes for the disk and back (see prefix_learner.h).
#include "engine/cache/prefix_learner.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"

namespace tensorfold {
namespace {

constexpr std::int32_t kPageTokens = limits::kKvPageTokens;
constexpr std::uint64_t kCopyBytesPerStep = 8u << 20;
constexpr std::uint64_t kFillBytesPerStep = 32u << 20;
constexpr auto kQueueFullWait = std::chrono::milliseconds(2);

}  // namespace

/// A segment that is being copied out of the tree, a page at a time.
struct PrefixLearner::Copying {
  Job job;
  std::unique_ptr<StateToWrite> state;
  bool is_last = false;  // of the job
  std::size_t group = 0;
  std::uint32_t block = 0;  // of the group's blocks in the segment
};

/// A prefix that is being put together from segments: pages of its own and of what the tree has already.
struct PrefixLearner::Filling {
  std::shared_ptr<PrefixLoad> load;
  std::shared_ptr<StateRead> read;
  std::vector<PageTable> tables;
  std::unique_ptr<StateRead::Part> part;
  std::size_t part_number = 0;  // in the chain
  std::size_t group = 0;        // of the part: what comes before is in place
};

PrefixLearner::PrefixLearner(LanguageModel& model, PagePool& pool, PrefixTree& tree, SnapshotPool& snapshots,
                             const PrefixBudget& budget, std::unique_ptr<DiskStore> store, std::string identity,
                             std::int32_t tokens_min)
    : model_(model),
      pool_(pool),
      tree_(tree),
      snapshots_(snapshots),
      groups_(model.facts().groups),
      budget_(budget),
      store_(std::move(store)),
      identity_(std::move(identity)),
      tokens_min_(tokens_min) {
  TF_ASSERT(store_ != nullptr && identity_.size() <= limits::kStateNameBytesMax);
}

PrefixLearner::~PrefixLearner() {
  while (!loads_.empty()) end_fill();
}

void PrefixLearner::offer(const std::string& scope, PrefixTree::Elements elements) {
  if (static_cast<std::int32_t>(elements.size()) < tokens_min_ || scope.size() > limits::kStateNameBytesMax) return;
  // Elements of media are numbers of this process: another one couldn't compare them.
  if (std::any_of(elements.begin(), elements.end(), [](std::int32_t element) { return element < 0; })) return;
  if (tree_.resumes_anywhere()) {  // a longer prefix serves all shorter ones
    std::erase_if(jobs_, [&](const Job& job) {
      return job.scope == scope && job.elements.size() <= elements.size() &&
             std::equal(job.elements.begin(), job.elements.end(), elements.begin());
    });
  }
  if (jobs_.size() >= limits::kLearnJobsMax) jobs_.pop_front();
  jobs_.push_back({scope, {elements.begin(), elements.end()}});
}

bool PrefixLearner::work() {
  const bool filling = fill_step();
  const bool copying = copy_step();
  return filling || copying;
}

void PrefixLearner::abandon() {
  copying_.reset();
  jobs_.clear();
  while (!loads_.empty()) end_fill();
}

void PrefixLearner::flush(std::chrono::steady_clock::time_point until) {
  while ((copying_ != nullptr || !jobs_.empty()) && std::chrono::steady_clock::now() < until) {
    if (copy_step()) continue;
    if (store_->counters().is_paused) return;
    std::this_thread::sleep_for(kQueueFullWait);
  }
}

// --- to disk ---------------------------------------------------------------------------------------------------------

/// True when another step can follow at once.
bool PrefixLearner::copy_step() {
  if (copying_ == nullptr) {
    if (jobs_.empty() || !store_->can_write()) return false;
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    if (!begin_segment(job)) return !jobs_.empty();
  }
  if (!copy_pages(kCopyBytesPerStep)) {
    copying_.reset();  // evicted in between
    return !jobs_.empty();
  }
  if (copying_->group == groups_.size()) finish_segment();
  return copying_ != nullptr || !jobs_.empty();
}

/// Where the next segment of a job begins, and what it continues: the segment before, or what the disk has.
PrefixLearner::Place PrefixLearner::next_place(const Job& job) const {
  if (copying_ != nullptr) {
    const StateHeader& before = copying_->state->header;
    return {static_cast<std::int32_t>(before.end), before.id};
  }
  const auto position = static_cast<std::int32_t>(job.elements.size());
  const StoredPrefix covered = store_->covered(identity_, job.scope, job.elements);
  Place place;
  place.begin = std::min(covered.position, position - 1) / kPageTokens * kPageTokens;
  for (std::size_t i = covered.chain.size(); i > 0 && place.parent == 0; --i) {
    if (covered.begins[i - 1] < static_cast<std::uint32_t>(place.begin)) place.parent = covered.chain[i - 1];
  }
  if (place.parent == 0) place.begin = 0;
  return place;
}

/// The last block of a segment that begins with block `first`: a file has a size.
std::int32_t PrefixLearner::last_block(std::int32_t first, std::int32_t last) const {
  std::uint64_t block_bytes = 1;
  for (const std::size_t g : tree_.full_groups()) block_bytes += groups_[g].page_bytes;
  const auto blocks = static_cast<std::int32_t>(
      std::clamp<std::uint64_t>(limits::kLearnSegmentBytesMax / block_bytes, 1, limits::kContextTokensMax));
  return std::min(last, first + blocks - 1);
}

/// Plans the next segment of a job: what the disk doesn't have yet, up to a file's size. False: nothing to write.
bool PrefixLearner::begin_segment(const Job& job) {
  const auto position = static_cast<std::int32_t>(job.elements.size());
  if (store_->resumable(identity_, job.scope, job.elements, position).position == position) return false;
  const HeldPrefix held = tree_.held(job.scope, job.elements);
  if (held.matched < position || (tree_.is_recurrent() && held.snapshot == nullptr)) return false;
  const Place place = next_place(job);
  const std::int32_t first = place.begin / kPageTokens, last = (position - 1) / kPageTokens;
  const std::int32_t end_block = last_block(first, last);

  auto next = std::make_unique<Copying>();
  next->job = job;
  next->is_last = end_block == last;
  next->state = std::make_unique<StateToWrite>();
  next->state->resume_point = next->is_last;
  StateHeader& header = next->state->header;
  header.id = store_->next_id();
  header.parent = place.parent;
  header.begin = static_cast<std::uint32_t>(place.begin);
  header.end = static_cast<std::uint32_t>(next->is_last ? position : (end_block + 1) * kPageTokens);
  header.identity = identity_;
  header.scope = job.scope;
  header.tokens.assign(job.elements.begin() + place.begin, job.elements.begin() + header.end);
  header.groups.resize(groups_.size());
  for (std::size_t g = 0; g < groups_.size(); ++g) header.groups[g].page_bytes = groups_[g].page_bytes;
  const auto set_blocks = [&](std::size_t g, std::int32_t first_block) {
    header.groups[g].first_block = static_cast<std::uint32_t>(first_block);
    header.groups[g].blocks = static_cast<std::uint32_t>(end_block - first_block + 1);
  };
  for (const std::size_t g : tree_.full_groups()) set_blocks(g, first);
  if (next->is_last) {
    for (const std::size_t g : tree_.window_groups()) set_blocks(g, tree_.first_window_block(g, position));
    if (held.snapshot != nullptr) {
      next->state->snapshot = held.snapshot;
      header.snapshot_bytes = held.snapshot->size();
    }
  }
  next->state->pages.reserve(header.payload_bytes() - header.snapshot_bytes);
  copying_ = std::move(next);
  return true;
}

bool PrefixLearner::copy_pages(std::uint64_t bytes_max) {
  const HeldPrefix held = tree_.held(copying_->job.scope, copying_->job.elements);
  std::vector<std::byte>& pages = copying_->state->pages;
  const std::uint64_t until = pages.size() + bytes_max;
  const std::vector<StateGroup>& groups = copying_->state->header.groups;
  for (; copying_->group < groups.size(); ++copying_->group, copying_->block = 0) {
    const StateGroup& group = groups[copying_->group];
    for (; copying_->block < group.blocks; ++copying_->block) {
      if (pages.size() >= until) return true;
      const std::size_t block = group.first_block + copying_->block;
      const PageTable& table = held.tables[copying_->group];
      if (block >= table.size() || table[block] <= 0) return false;
      pages.resize(pages.size() + group.page_bytes);
      model_.read_page(static_cast<std::int32_t>(copying_->group), table[block],
                       pages.data() + pages.size() - group.page_bytes);
    }
  }
  return true;
}

void PrefixLearner::finish_segment() {
  auto state = std::move(copying_->state);
  if (state->snapshot != nullptr) model_.finish_copies();  // another thread reads it
  if (copying_->is_last) {
    copying_.reset();
  } else {
    // The next one's plan reads where this one ends.
    const Job job = copying_->job;
    copying_->state = std::make_unique<StateToWrite>();
    copying_->state->header.id = state->header.id;
    copying_->state->header.end = state->header.end;
    if (!begin_segment(job)) copying_.reset();
  }
  store_->write(std::move(state));
}

// --- from disk -------------------------------------------------------------------------------------------------------

std::shared_ptr<PrefixLoad> PrefixLearner::load(const std::string& scope, PrefixTree::Elements elements,
                                                std::int32_t position_max, std::int32_t known) {
  const StoredPrefix stored = store_->resumable(identity_, scope, elements, position_max);
  if (stored.position < known + tokens_min_) return nullptr;
  for (const std::size_t g : tree_.full_groups()) {
    if ((stored.position - 1) / kPageTokens >= budget_.page_counts[g]) return nullptr;
  }
  for (const std::shared_ptr<PrefixLoad>& load : loads_) {
    if (load->scope == scope && load->stored.chain == stored.chain && load->position >= stored.position) return load;
  }
  if (loads_.size() >= limits::kLearnJobsMax) return nullptr;
  auto load = std::make_shared<PrefixLoad>();
  load->scope = scope;
  load->position = stored.position;
  load->elements.assign(elements.begin(), elements.begin() + stored.position);
  load->stored = stored;
  loads_.push_back(load);
  return load;
}

void PrefixLearner::give_up(const std::shared_ptr<PrefixLoad>& load) {
  const auto found = std::find(loads_.begin(), loads_.end(), load);
  if (found == loads_.end()) return;
  const bool is_filling = filling_ != nullptr && filling_->load == load;
  if (load.use_count() > (is_filling ? 3 : 2)) return;  // somebody else waits for it
  if (is_filling) return end_fill();
  load->is_done = true;
  loads_.erase(found);
}

bool PrefixLearner::fill_step() {
  if (loads_.empty()) return false;
  if (filling_ == nullptr) begin_fill();
  try {
    if (filling_->part == nullptr) {
      const bool was_done = filling_->read->is_done();  // asked first: what came before it is there
      filling_->part = filling_->read->take();
      filling_->group = 0;
      if (filling_->part == nullptr) {
        if (was_done) end_fill();
        return was_done && !loads_.empty();
      }
    }
    if (!install_pages(kFillBytesPerStep)) {
      end_fill();
    } else if (filling_->group == groups_.size()) {
      install_part();
    }
  } catch (const std::exception& error) {
    spdlog::warn("learning: a state can't be put back ({})", error.what());
    end_fill();
    if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) throw;  // the tree may be torn, too
  }
  return !loads_.empty();
}

void PrefixLearner::begin_fill() {
  filling_ = std::make_unique<Filling>();
  filling_->load = loads_.front();
  filling_->read = store_->read(filling_->load->stored);
  // Whole blocks that the tree has needn't be put there again.
  HeldPrefix held = tree_.held(filling_->load->scope, filling_->load->elements);
  const std::size_t whole = static_cast<std::size_t>(held.matched / kPageTokens);
  filling_->tables.resize(groups_.size());
  for (const std::size_t g : tree_.full_groups()) {
    held.tables[g].resize(whole);
    for (const std::int32_t page : held.tables[g]) pool_.add_reference(static_cast<std::int32_t>(g), page);
    filling_->tables[g] = std::move(held.tables[g]);
  }
}

/// Up to where the current part's tokens are those of the prefix: the next part takes over where it begins.
std::int32_t PrefixLearner::part_end() const {
  const StoredPrefix& stored = filling_->load->stored;
  const std::size_t next = filling_->part_number + 1;
  return next < stored.begins.size() ? static_cast<std::int32_t>(stored.begins[next]) : filling_->load->position;
}

/// Puts pages of the current part into pages of ours, as many as a step may; false when it can't be.
bool PrefixLearner::install_pages(std::uint64_t bytes_max) {
  const StateHeader& header = filling_->part->header;
  const auto begin = static_cast<std::int32_t>(header.begin);
  // The reader has compared file and manifest; this compares them with what is wanted.
  const std::vector<std::int32_t>& wanted = filling_->load->elements;
  const std::int32_t end = part_end();
  if (header.id != filling_->load->stored.chain[filling_->part_number] || header.groups.size() != groups_.size() ||
      end > static_cast<std::int32_t>(header.end) || end <= begin ||
      !std::equal(wanted.begin() + begin, wanted.begin() + end, header.tokens.begin())) {
    return false;
  }
  std::uint64_t bytes_left = bytes_max;
  for (; filling_->group < groups_.size(); ++filling_->group) {
    if (!install_group(filling_->group, bytes_left)) return false;
    if (bytes_left == 0) return true;  // the group is looked at again: it may be whole
  }
  return true;
}

bool PrefixLearner::install_group(std::size_t group, std::uint64_t& bytes_left) {
  const StateHeader& header = filling_->part->header;
  const StateGroup& pages = header.groups[group];
  if (groups_[group].page_bytes == 0) return true;
  if (pages.page_bytes != groups_[group].page_bytes) return false;
  PageTable& table = filling_->tables[group];
  const auto& windows = tree_.window_groups();
  if (std::find(windows.begin(), windows.end(), group) != windows.end()) {
    if (filling_->part_number + 1 < filling_->load->stored.chain.size()) return true;  // the last part's count
    const std::int32_t first = tree_.first_window_block(group, filling_->load->position);
    if (table.empty()) table.resize(static_cast<std::size_t>(first), -1);
  }
  const std::size_t end = static_cast<std::size_t>((part_end() - 1) / kPageTokens) + 1;
  table.reserve(end);  // a page that is taken needs its place
  while (table.size() < end) {
    const auto block = static_cast<std::uint32_t>(table.size());
    if (block < pages.first_block || block - pages.first_block >= pages.blocks) return false;  // a hole
    const auto index = static_cast<std::int32_t>(group);
    if (!pool_.reserve(index, 1)) return false;
    table.push_back(
        pool_.take_reserved_written(index, filling_->part->payload.data() + header.page_offset(group, block)));
    bytes_left -= std::min(bytes_left, pages.page_bytes);
    if (bytes_left == 0) break;
  }
  return true;
}

/// All pages of a part are in place: what it completes goes into the tree.
void PrefixLearner::install_part() {
  const std::int32_t position = part_end();
  const std::unique_ptr<StateRead::Part> part = std::move(filling_->part);
  const bool is_last = ++filling_->part_number == filling_->load->stored.chain.size();
  if (tree_.resumes_anywhere()) {
    keep_filled(position, false, nullptr);
  } else if (is_last) {
    std::shared_ptr<StateSnapshot> snapshot;
    if (tree_.is_recurrent()) {
      if (part->header.snapshot_bytes != tree_.snapshot_bytes()) return end_fill();
      const auto size = static_cast<std::size_t>(tree_.snapshot_bytes());
      snapshot = snapshots_.take_filled(part->payload.data() + part->payload.size() - size, size);
    }
    keep_filled(position, true, std::move(snapshot));
  }
  if (is_last) end_fill();
}

void PrefixLearner::keep_filled(std::int32_t position, bool resume_point,
                                std::shared_ptr<const StateSnapshot> snapshot) {
  const std::size_t blocks = static_cast<std::size_t>((position - 1) / kPageTokens) + 1;
  std::vector<PageTable> tables = filling_->tables;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].page_bytes > 0 && tables[g].size() < blocks) tables[g].resize(blocks, -1);
  }
  tree_.keep(filling_->load->scope,
             PrefixTree::Elements(filling_->load->elements).first(static_cast<std::size_t>(position)), tables,
             resume_point, std::move(snapshot));
}

void PrefixLearner::end_fill() {
  if (filling_ != nullptr) {
    if (filling_->read != nullptr) filling_->read->cancel();
    for (std::size_t g = 0; g < filling_->tables.size(); ++g) {
      for (const std::int32_t page : filling_->tables[g]) {
        if (page > 0) pool_.release(static_cast<std::int32_t>(g), page);
      }
    }
    filling_.reset();
  }
  loads_.front()->is_done = true;
  loads_.pop_front();
}

}  // namespace tensorfold
