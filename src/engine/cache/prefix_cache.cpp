// Kept prefixes in the life of a stream (see prefix_cache.h).
#include "engine/cache/prefix_cache.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"
#include "engine/stream.h"

namespace tensorfold {
namespace {

constexpr std::int32_t kPageTokens = limits::kKvPageTokens;
constexpr std::int32_t kSharedTokensMin = kPageTokens;            // waiting for less isn't worth it
constexpr std::int32_t kSnapshotTokensMin = kPageTokens;          // a shorter prefix is computed in less than a pass
constexpr double kLoadSecondsMin = 0.25, kLoadSecondsMax = 10.0;  // waiting for the disk
constexpr auto kFlushTime = std::chrono::seconds(10);
constexpr std::uint64_t kPreparedBytesMax = 2ull << 30;  // bounds how long pinning it holds up the start
constexpr std::size_t kLastMessages = 2;  // ends of the last messages are where the next turn and an edit resume

}  // namespace

PrefixCache::PrefixCache(LanguageModel& model, PagePool& pool, const Capacity& capacity, Options options)
    : model_(model),
      pool_(pool),
      groups_(model.facts().groups),
      pass_rows_(capacity.pass_rows),
      options_(std::move(options)),
      snapshots_(model) {
  if (capacity.prefix_budget.is_empty()) return;
  tree_ = std::make_unique<PrefixTree>(model, pool, capacity.prefix_budget);
  if (tree_->is_recurrent()) {
    snapshots_.set_reclaimer(static_cast<std::size_t>(capacity.prefix_budget.snapshot_bytes / tree_->snapshot_bytes()),
                             [this] { return tree_->reclaim_snapshot(); });
  }
  prepare_snapshots(capacity);
  mark_spacing_ = resume_point_spacing(groups_);
  pool_.set_reclaimer([this](std::int32_t group) {
    try {
      return tree_->reclaim(group);
    } catch (const std::bad_alloc& error) {
      forget_if_torn(error);
      return true;  // its pages are free now
    }
  });
  if (options_.store == nullptr) return;
  learner_ = std::make_unique<PrefixLearner>(model, pool, *tree_, snapshots_, capacity.prefix_budget,
                                             std::move(options_.store), options_.identity, options_.learn_tokens_min);
}

/// Where states travel to host memory, the first of them shouldn't wait for it to be pinned. More comes as it is wanted.
void PrefixCache::prepare_snapshots(const Capacity& capacity) {
  if (!tree_->is_recurrent() || model_.memory_available().is_shared) return;
  const std::uint64_t bytes = std::min(capacity.prefix_budget.snapshot_bytes, kPreparedBytesMax);
  const std::uint64_t count = std::min<std::uint64_t>(bytes / tree_->snapshot_bytes(), static_cast<std::uint64_t>(capacity.lanes) + 1);
  try {
    snapshots_.prepare(count);
  } catch (const std::exception& error) {
    spdlog::warn("no memory was taken ahead for kept states ({})", error.what());
  }
}

/// Short memory is what can stop a change of the tree in its middle: nothing that it holds is relied on any more then.
void PrefixCache::forget_if_torn(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) == nullptr) return;
  spdlog::warn("memory is short: all kept prefixes are let go of");
  tree_->forget();
  snapshots_.trim();
}

bool PrefixCache::work() {
  if (learner_ == nullptr) return false;
  try {
    return learner_->work();
  } catch (const std::exception& error) {
    spdlog::warn("learning: what was being copied is let go of: {}", error.what());
    learner_->abandon();
    forget_if_torn(error);
    return false;
  }
}

void PrefixCache::flush() {
  if (learner_ == nullptr) return;
  try {
    learner_->flush(std::chrono::steady_clock::now() + kFlushTime);
  } catch (const std::exception& error) {
    spdlog::warn("learning: what is pending isn't written: {}", error.what());
  }
}

PrefixCache::~PrefixCache() {
  pool_.set_reclaimer(nullptr);
}

void PrefixCache::open(Stream& stream) {
  if (!is_enabled()) return;
  StreamPrefix& prefix = stream.prefix;
  prefix.keeps = true;
  prefix.scope = options_.shared_by_all ? "all" : "key " + stream.request().prompt.owner;
  for (const PromptMark& mark : stream.request().marks) {
    if (mark.kind == PromptMarkKind::kSystemEnd) prefix.system_end = mark.position;
  }
  if (!stream.request().prompt.media.empty()) name_media(stream);
}

/// Each distinct content gets a key element of its own, so that comparing elements compares whole content hashes.
void PrefixCache::name_media(Stream& stream) {
  const PrefixKey& key = stream.request().prompt;
  stream.prefix.elements = key.tokens;
  for (const MediaUnit& unit : key.media) {
    auto found = media_names_.find(unit.content_hash);
    if (found == media_names_.end()) {
      if (media_names_.size() >= limits::kPrefixMediaMax) {
        stream.prefix.keeps = false;
        return;
      }
      const std::int32_t name = -1 - static_cast<std::int32_t>(media_names_.size());
      found = media_names_.emplace(unit.content_hash, name).first;
    }
    const std::int32_t end = unit.first_index + unit.row_count;
    TF_ASSERT(unit.first_index >= 0 && end <= static_cast<std::int32_t>(key.tokens.size()));
    for (std::int32_t i = unit.first_index; i < end; ++i)
      stream.prefix.elements[static_cast<std::size_t>(i)] = found->second;
  }
}

PrefixTree::Elements PrefixCache::elements_of(Stream& stream, std::int32_t count) {
  std::vector<std::int32_t>& own = stream.prefix.elements;
  const std::vector<std::int32_t>& tokens = stream.context();
  if (own.empty()) return PrefixTree::Elements(tokens).first(static_cast<std::size_t>(count));
  own.resize(std::min(own.size(), tokens.size()));  // a preempted stream has begun again
  own.insert(own.end(), tokens.begin() + static_cast<std::ptrdiff_t>(own.size()), tokens.end());
  return PrefixTree::Elements(own).first(static_cast<std::size_t>(count));
}

std::vector<PrefixTree::Range> PrefixCache::uncut_of(const Stream& stream) const {
  std::vector<PrefixTree::Range> ranges;
  for (const MediaUnit& unit : stream.request().prompt.media) {
    ranges.push_back({unit.first_index, unit.first_index + unit.row_count});
  }
  return ranges;
}

/// Where the prompt's resume points are: end of the system prompt, ends of the last messages, the last token but one
/// (an identical request resumes there), other message ends and bare positions a good distance apart.
void PrefixCache::plan_marks(Stream& stream) {
  StreamPrefix& prefix = stream.prefix;
  prefix.marks.clear();
  if (tree_->resumes_anywhere()) return;
  const std::int32_t first = std::max(stream.fed() + 1, kSnapshotTokensMin);
  const std::int32_t last = stream.prompt_length() - 1;
  std::vector<std::int32_t> wanted, others;
  if (last >= first) wanted.push_back(last);
  const std::vector<PromptMark>& marks = stream.request().marks;
  for (std::size_t i = 0; i < marks.size(); ++i) {
    if (marks[i].position < first || marks[i].position > last) continue;
    const bool is_wanted = marks[i].kind == PromptMarkKind::kSystemEnd || i + kLastMessages >= marks.size();
    (is_wanted ? wanted : others).push_back(marks[i].position);
  }
  for (std::int32_t at = (first / mark_spacing_ + 1) * mark_spacing_; at < last; at += mark_spacing_)
    others.push_back(at);
  std::sort(wanted.begin(), wanted.end());
  std::sort(others.begin(), others.end());
  for (const std::int32_t at : others) {
    const auto after = std::lower_bound(wanted.begin(), wanted.end(), at);
    if (after != wanted.end() && *after - at < mark_spacing_) continue;
    if (after != wanted.begin() && at - *std::prev(after) < mark_spacing_) continue;
    if (after == wanted.begin() && at - stream.fed() < mark_spacing_) continue;
    wanted.insert(after, at);
  }
  // On disk a state of the prompt without its reply, too: a template may write the reply in another way next time.
  prefix.learn_mark = marks.empty() ? last : marks.back().position;
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  for (const std::int32_t at : wanted) {
    const auto ranges = uncut_of(stream);
    const bool cuts =
        std::any_of(ranges.begin(), ranges.end(), [at](const auto& r) { return at > r.first && at < r.last; });
    if (!cuts) prefix.marks.push_back(at);
  }
}

/// Up to where `stream` can take over what `other` is computing; 0: nothing.
std::int32_t PrefixCache::shared_position(Stream& stream, Stream& other) {
  if (!other.prefix.keeps || other.prefix.scope != stream.prefix.scope) return 0;
  if (other.phase() != Stream::Phase::kPrompt) return 0;
  const PrefixTree::Elements ours = elements_of(stream, stream.prompt_length() - 1);
  const PrefixTree::Elements theirs = elements_of(other, other.prompt_length());
  const std::size_t most = std::min(ours.size(), theirs.size());
  auto common = static_cast<std::int32_t>(
      std::mismatch(ours.begin(), ours.begin() + static_cast<std::ptrdiff_t>(most), theirs.begin()).first -
      ours.begin());
  for (const PrefixTree::Range& range : uncut_of(stream)) {
    if (common > range.first && common < range.last) common = range.first;
  }
  return common > other.fed() ? common : 0;
}

bool PrefixCache::may_start(Stream& stream, const std::vector<std::shared_ptr<Stream>>& running) {
  StreamPrefix& prefix = stream.prefix;
  if (!prefix.keeps || stream.request().score_prompt) return true;
  if (const std::shared_ptr<Stream> other = prefix.awaits.lock()) {
    if (other->phase() == Stream::Phase::kPrompt && other->fed() < prefix.awaited_position) return false;
    prefix.awaits.reset();
  }
  if (waits_for_disk(stream)) return false;
  std::shared_ptr<Stream> best;
  std::int32_t best_position = 0;
  for (const std::shared_ptr<Stream>& other : running) {
    const std::int32_t position = shared_position(stream, *other);
    if (position > best_position) best_position = position, best = other;
  }
  if (best_position < kSharedTokensMin) return true;
  const PrefixMatch match = tree_->match(prefix.scope, elements_of(stream, stream.prompt_length()),
                                         stream.prompt_length() - 1, uncut_of(stream));
  if (best_position < match.prefix.position + kSharedTokensMin) return true;
  std::vector<std::int32_t>& marks = best->prefix.marks;
  const auto at = std::lower_bound(marks.begin(), marks.end(), best_position);
  if (at == marks.end() || *at != best_position) marks.insert(at, best_position);
  best->prefix.is_awaited = true;
  prefix.awaits = best;
  prefix.awaited_position = best_position;
  ++counters_.waits;
  return false;
}

/// True while a prefix of the stream is read back from disk, for no longer than computing it would take.
bool PrefixCache::waits_for_disk(Stream& stream) {
  StreamPrefix& prefix = stream.prefix;
  if (learner_ == nullptr) return false;
  const auto now = std::chrono::steady_clock::now();
  if (!prefix.has_asked_disk) {
    prefix.has_asked_disk = true;
    const PrefixTree::Elements elements = elements_of(stream, stream.prompt_length());
    const std::int32_t known =
        tree_->match(prefix.scope, elements, stream.prompt_length() - 1, uncut_of(stream)).prefix.position;
    prefix.load = learner_->load(prefix.scope, elements, stream.prompt_length() - 1, known);
    if (prefix.load == nullptr) return false;
    ++counters_.loads;
    const double expected = options_.seconds_for_rows ? options_.seconds_for_rows(prefix.load->position - known) : 0.0;
    const double most = expected > 0 ? std::clamp(expected, kLoadSecondsMin, kLoadSecondsMax) : kLoadSecondsMax;
    prefix.load_until =
        now + std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(most));
  }
  if (prefix.load == nullptr) return false;
  if (!prefix.load->is_done && now < prefix.load_until) return true;
  if (!prefix.load->is_done) learner_->give_up(prefix.load);
  prefix.load.reset();
  return false;
}

bool PrefixCache::start(Stream& stream) {
  stream.prefix.kept = 0;
  if (!stream.prefix.keeps) return stream.cache().admit(pool_, groups_, stream.tokens_max(), pass_rows_);
  const bool resumed = !stream.request().score_prompt && resume(stream);
  const bool admitted = resumed || stream.cache().admit(pool_, groups_, stream.tokens_max(), pass_rows_);
  if (admitted) plan_marks(stream);
  return admitted;
}

bool PrefixCache::resume(Stream& stream) {
  ++counters_.queries;
  const PrefixTree::Elements elements = elements_of(stream, stream.prompt_length());
  const std::string& scope = stream.prefix.scope;
  const PrefixMatch match = tree_->match(scope, elements, stream.prompt_length() - 1, uncut_of(stream));
  if (match.prefix.position == 0) return false;
  try {
    tree_->touch(scope, elements, match);
  } catch (const std::exception& error) {
    forget_if_torn(error);
    return false;
  }
  if (!stream.cache().admit(pool_, groups_, stream.tokens_max(), pass_rows_, &match.prefix)) return false;
  try {
    if (match.snapshot != nullptr) model_.write_slot(stream.cache().slot(), match.snapshot->data());
  } catch (const std::exception& error) {
    spdlog::warn("a kept state couldn't be restored ({}); the prompt is computed from its start", error.what());
    stream.cache().release();
    return false;
  }
  stream.resume(match.prefix.position);
  stream.prefix.kept = match.prefix.position;
  ++counters_.hits;
  counters_.cached_tokens += static_cast<std::uint64_t>(match.prefix.position);
  return true;
}

std::int32_t PrefixCache::prompt_rows_max(const Stream& stream) const {
  if (!is_enabled() || !tree_->is_recurrent()) return pass_rows_;
  const std::vector<std::int32_t>& marks = stream.prefix.marks;
  const auto next = std::upper_bound(marks.begin(), marks.end(), stream.fed());
  return next == marks.end() ? pass_rows_ : *next - stream.fed();
}

void PrefixCache::on_prompt_rows(Stream& stream) {
  if (!stream.prefix.keeps) return;
  try {
    keep_prompt(stream);
  } catch (const std::exception& error) {  // its reply doesn't depend on it
    spdlog::warn("stream {}: its prompt couldn't be kept ({})", stream.request().id, error.what());
    stream.prefix.keeps = false;
    forget_if_torn(error);
  }
}

void PrefixCache::keep_prompt(Stream& stream) {
  StreamPrefix& prefix = stream.prefix;
  const std::int32_t fed = stream.fed();
  // Marks that this pass has reached; a snapshot exists only of the very last row.
  auto mark = prefix.marks.begin();
  for (; mark != prefix.marks.end() && *mark <= fed; ++mark) {
    if (*mark <= prefix.kept || (*mark != fed && tree_->is_recurrent())) continue;
    keep(stream, *mark, true);
    if (learner_ != nullptr && options_.learn_conversations && *mark == prefix.learn_mark) {
      learner_->offer(prefix.scope, elements_of(stream, *mark));
    }
  }
  prefix.marks.erase(prefix.marks.begin(), mark);
  if (!tree_->resumes_anywhere()) {
    offer_system_prompt(stream);
    return;
  }
  // Whole pages won't be written again: they can be shared while the prompt goes on. Its end is kept as it is.
  const std::int32_t whole = fed == stream.prompt_length() ? fed : fed - fed % kPageTokens;
  if (whole > prefix.kept) keep(stream, whole, false);
  offer_system_prompt(stream);
}

/// What many requests share goes to disk as soon as it is kept.
void PrefixCache::offer_system_prompt(Stream& stream) {
  StreamPrefix& prefix = stream.prefix;
  if (learner_ == nullptr || prefix.system_end == 0 || prefix.kept < prefix.system_end) return;
  if (prefix.system_end > stream.cached_tokens()) {
    learner_->offer(prefix.scope, elements_of(stream, prefix.system_end));
  }
  prefix.system_end = 0;
}

void PrefixCache::on_end(Stream& stream) {
  const StreamPrefix& prefix = stream.prefix;
  if (!prefix.keeps || stream.fed() <= prefix.kept) return;
  if (!tree_->resumes_anywhere() && stream.fed() < kSnapshotTokensMin) return;
  try {
    settle(stream);
    keep(stream, stream.fed(), true);
    if (learner_ != nullptr && options_.learn_conversations) {
      learner_->offer(prefix.scope, elements_of(stream, stream.fed()));
    }
  } catch (const std::exception& error) {
    spdlog::warn("stream {}: its state couldn't be kept ({})", stream.request().id, error.what());
    forget_if_torn(error);
  }
}

/// Late commit, now: what a next pass would have replayed.
void PrefixCache::settle(Stream& stream) {
  if (stream.replay_rows().empty()) return;
  PlanLane lane;
  lane.slot = stream.cache().slot();
  lane.position = stream.fed();
  lane.commits = false;
  lane.replay_rows = stream.replay_rows();
  lane.replay_tree = stream.replay_tree();
  lane.pages = stream.cache().tables();
  model_.settle(lane);
}

void PrefixCache::keep(Stream& stream, std::int32_t position, bool resume_point) {
  std::shared_ptr<StateSnapshot> snapshot;
  if (tree_->is_recurrent() && resume_point) {
    snapshot = snapshots_.take();
    model_.read_slot(stream.cache().slot(), snapshot->data());
  }
  tree_->keep(stream.prefix.scope, elements_of(stream, position), stream.cache().tables(), resume_point,
              std::move(snapshot));
  stream.prefix.kept = position;
}

}  // namespace tensorfold
