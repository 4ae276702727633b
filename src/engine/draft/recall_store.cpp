// See recall_store.h.
#include "engine/draft/recall_store.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"

namespace tensorfold {
namespace {

constexpr std::size_t kGram = RecallIndex::kGramTokens;
constexpr std::size_t kKnownTokensMin = 64;  // shorter repetitions are written again: a part costs a record

}  // namespace

RecallStore::RecallStore(const RecallOptions& options)
    : options_(options),
      folder_(options.folder, options.identity, options.bytes_max, options.read_only),
      index_(options.bytes_max) {
  TF_ASSERT(options.vocabulary_size > 0);
  load();
  if (!folder_.is_read_only()) writer_ = std::thread([this] { write_texts(); });
}

RecallStore::~RecallStore() {
  {
    const std::lock_guard lock(queue_mutex_);
    stopping_ = true;
    queue_changed_.notify_all();
  }
  if (writer_.joinable()) writer_.join();
}

void RecallStore::load() {
  std::uint64_t segment = 0;
  folder_.load(options_.vocabulary_size,
               [this, &segment](std::uint64_t number, const RecallScope& scope, std::span<const std::int32_t> tokens) {
                 if (number != segment) index_.begin_segment(number);
                 segment = number;
                 index_.append(scope, tokens);
               });
  newest_segment_ = segment;
}

std::size_t RecallStore::token_count() const {
  const std::lock_guard lock(index_mutex_);
  return index_.token_count();
}

void RecallStore::record(const RecallScope& scope, std::span<const std::int32_t> text) {
  if (is_read_only() || text.size() <= kGram) return;
  const std::lock_guard lock(queue_mutex_);
  if (queue_.size() >= limits::kRecallQueueTextsMax || queued_tokens_ + text.size() > limits::kRecallQueueTokensMax) {
    spdlog::debug("recall: too much waits to be written; a text of {} tokens is dropped", text.size());
    return;
  }
  queue_.push_back({scope, {text.begin(), text.end()}});
  queued_tokens_ += text.size();
  queue_changed_.notify_all();
}

void RecallStore::flush() {
  std::unique_lock lock(queue_mutex_);
  queue_changed_.wait(lock, [this] { return queue_.empty() && !is_writing_; });
}

void RecallStore::write_texts() {
  std::unique_lock lock(queue_mutex_);
  while (true) {
    queue_changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const Text text = std::move(queue_.front());
    queue_.pop_front();
    queued_tokens_ -= text.tokens.size();
    is_writing_ = true;
    lock.unlock();
    try {
      write(text);
    } catch (const std::exception& error) {
      spdlog::warn("recall: a text was not recorded: {}", error.what());
    }
    lock.lock();
    is_writing_ = false;
    queue_changed_.notify_all();
  }
}

std::size_t RecallStore::known_length(const RecallScope& scope, std::span<const std::int32_t> text) const {
  const std::lock_guard lock(index_mutex_);
  const RecallIndex::Place place = index_.find(scope, text.first(kGram));
  if (place.segment == 0) return 0;
  const std::span<const std::int32_t> after = text.subspan(kGram);
  const std::span<const std::int32_t> known = index_.read(scope, place, after.size());
  const auto differs = std::mismatch(known.begin(), known.end(), after.begin());
  return kGram + static_cast<std::size_t>(differs.first - known.begin());
}

std::vector<std::span<const std::int32_t>> RecallStore::unknown_parts(const Text& text) const {
  const std::span<const std::int32_t> tokens = text.tokens;
  std::vector<std::span<const std::int32_t>> parts;
  // A part begins and ends with kGram known tokens, so that it is found from before and leads to what follows.
  std::size_t known_end = 0;
  for (std::size_t at = 0; at + kGram < tokens.size();) {
    const std::size_t known = known_length(text.scope, tokens.subspan(at));
    const bool goes_on = at + kGram <= known_end && at + known > known_end;  // into another record: costs nothing
    if (!goes_on && known < std::min(kKnownTokensMin, tokens.size() - at)) {
      ++at;
      continue;
    }
    const std::size_t part_begin = known_end - std::min(known_end, kGram);
    if (at > 0 && at + kGram > known_end) parts.push_back(tokens.subspan(part_begin, at + kGram - part_begin));
    known_end = at + known;
    at = known_end - kGram;  // what follows may stand in another record
  }
  const std::size_t part_begin = known_end - std::min(known_end, kGram);
  if (tokens.size() > known_end) parts.push_back(tokens.subspan(part_begin));
  return parts;
}

void RecallStore::write(const Text& text) {
  for (std::span<const std::int32_t> part : unknown_parts(text)) {
    while (part.size() > kGram) {
      const std::span<const std::int32_t> piece = part.first(std::min(part.size(), limits::kRecallRecordTokensMax));
      const RecallFolder::Appended appended = folder_.append(text.scope, piece);
      {
        const std::lock_guard lock(index_mutex_);
        for (const std::uint64_t number : appended.removed) index_.drop_segment(number);
        if (appended.segment != 0) {
          if (appended.segment != newest_segment_) index_.begin_segment(appended.segment);
          newest_segment_ = appended.segment;
          index_.append(text.scope, piece);
        }
      }
      if (appended.segment == 0) return;  // paused: the rest would leave a hole
      part = piece.size() == part.size() ? std::span<const std::int32_t>{} : part.subspan(piece.size() - kGram);
    }
  }
}

RecallIndex::Place RecallStore::look_up(const RecallScope& scope, std::span<const std::int32_t> text,
                                        const RecallIndex::Place& last, std::span<const std::int32_t> news,
                                        std::span<std::int32_t> continuation, std::size_t& count) const {
  const std::lock_guard lock(index_mutex_);
  RecallIndex::Place place = index_.find(scope, text);
  const RecallIndex::Place followed = index_.follow(scope, last, news);
  // On equal terms stay where the text has been coming from.
  if (followed.segment != 0 && followed.match_length >= place.match_length &&
      !index_.read(scope, followed, 1).empty()) {
    place = followed;
  }
  const std::span<const std::int32_t> tokens = index_.read(scope, place, continuation.size());
  std::copy(tokens.begin(), tokens.end(), continuation.begin());
  count = tokens.size();
  return place;
}

}  // namespace tensorfold
