// Capacity planning (see capacity.h).
#include "engine/capacity.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>

#include "base/error.h"
#include "base/limits.h"
#include "engine/cache/stream_cache.h"

namespace tensorfold {
namespace {

constexpr std::int32_t kAutoLanes = 8;
constexpr std::int32_t kComfortableContext = 8192;  // automatic lanes are given up before the context falls below this

constexpr std::uint64_t kAutoPrefixBytesMax = 32ull << 30;
constexpr std::uint64_t kPrefixShareMax = 70;  // per cent of what the lanes leave that kept prefixes may be given
constexpr std::uint64_t kWideWindowShare = 16;  // of the cache memory, at most this part holds wide windows

constexpr std::uint64_t kUnbounded = std::numeric_limits<std::uint64_t>::max();

std::uint64_t saturating_multiply(std::uint64_t a, std::uint64_t b) {
  return b != 0 && a > kUnbounded / b ? kUnbounded : a * b;
}

std::uint64_t saturating_add(std::uint64_t a, std::uint64_t b) {
  return a > kUnbounded - b ? kUnbounded : a + b;
}

/// A slot with the window every lane is promised.
std::uint64_t slot_bytes(const CacheGroup& group) {
  return saturating_add(group.slot_bytes, saturating_multiply(group.slot_window_row_bytes, limits::kWindowRowsMax));
}

/// The reserved page of each group and the reserved slot.
std::uint64_t reserved_bytes(const ModelFacts& facts) {
  std::uint64_t bytes = 0;
  for (const CacheGroup& group : facts.groups) {
    bytes = saturating_add(bytes, saturating_add(group.page_bytes, slot_bytes(group)));
  }
  return bytes;
}

std::uint64_t total_bytes(const ModelFacts& facts, std::int32_t lanes, std::int32_t context, std::int32_t pass_rows) {
  const std::uint64_t per_lane = lane_bytes(facts, context, pass_rows);
  return saturating_add(reserved_bytes(facts), saturating_multiply(per_lane, static_cast<std::uint64_t>(lanes)));
}

/// The longest context up to `most` that `lanes` lanes fit in `memory`; 0 when not even one token does.
std::int32_t longest_context(const ModelFacts& facts, std::int32_t lanes, std::int32_t most, std::int32_t pass_rows,
                             std::uint64_t memory) {
  std::int32_t fits = 0, fails = most + 1;
  if (total_bytes(facts, lanes, most, pass_rows) <= memory) return most;
  while (fails - fits > 1) {
    const std::int32_t middle = fits + (fails - fits) / 2;
    (total_bytes(facts, lanes, middle, pass_rows) <= memory ? fits : fails) = middle;
  }
  return fits;
}

std::int32_t most_lanes(const ModelFacts& facts, std::int32_t most, std::int32_t context, std::int32_t pass_rows,
                        std::uint64_t memory) {
  while (most > 0 && total_bytes(facts, most, context, pass_rows) > memory) --most;
  return most;
}

double mebibytes(std::uint64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

void check_options(const ModelFacts& facts, const EngineOptions& options) {
  if (options.lanes < 0 || options.lanes > limits::kLanesMax) {
    fail(ErrorCode::kInvalidArgument, "--parallel {} is out of range; use 1 to {}, or auto.", options.lanes,
         limits::kLanesMax);
  }
  if (options.context < 0 || options.context > facts.context_max) {
    fail(ErrorCode::kInvalidArgument, "--context {} is out of range; this model supports up to {} tokens.",
         options.context, facts.context_max);
  }
  if (!(options.pass_seconds_max > 0.0) || options.pass_rows_max < 0) {
    fail(ErrorCode::kInvalidArgument, "A pass must be allowed some time and some rows ({} s, {} rows were given).",
         options.pass_seconds_max, options.pass_rows_max);
  }
}

/// Rows of the widest window: as wide as copying text can use, where slots hold that many at a small share of the
/// memory, of which `used` bytes are promised.
std::int32_t window_rows(const ModelFacts& facts, std::int32_t slots, std::int32_t pass_rows, std::uint64_t memory,
                         std::uint64_t used) {
  const std::int32_t usual = std::min({limits::kWindowRowsMax, facts.window_rows_max, pass_rows});
  const std::int32_t wide = std::min({limits::kWideWindowRowsMax, facts.window_rows_max, pass_rows});
  std::uint64_t row_bytes = 0;
  for (const CacheGroup& group : facts.groups) row_bytes = saturating_add(row_bytes, group.slot_window_row_bytes);
  const std::uint64_t more_rows = static_cast<std::uint64_t>(slots) * static_cast<std::uint64_t>(wide - usual);
  return saturating_multiply(row_bytes, more_rows) <= std::min(memory / kWideWindowShare, memory - std::min(memory, used)) ? wide : usual;
}

[[noreturn]] void refuse(const ModelFacts& facts, const EngineOptions& options, std::int32_t lanes,
                         std::int32_t context, std::int32_t pass_rows, std::uint64_t memory, bool is_shared) {
  const std::int32_t shorter = longest_context(facts, lanes, context, pass_rows, memory);
  const std::int32_t fewer = most_lanes(facts, lanes, context, pass_rows, memory);
  std::string advice;
  if (fewer > 0) advice += fmt::format(" --parallel {} fits with this context.", fewer);
  if (shorter > 0) advice += fmt::format(" --context {} fits with this many streams.", shorter);
  if (advice.empty()) advice = " Free memory or use a smaller model.";
  fail(ErrorCode::kResourceExhausted, "{} stream{} of {} tokens need{} {:.0f} MiB of cache, and {} {:.0f} MiB{}.{}",
       lanes, lanes == 1 ? "" : "s", context, lanes == 1 ? "s" : "",
       mebibytes(total_bytes(facts, lanes, context, pass_rows)),
       options.cache_memory_bytes != 0 ? "the cache is limited to"
       : is_shared                     ? "this machine leaves it"
                                       : "the GPU leaves it",
       mebibytes(memory), options.cache_memory_bytes == 0 && is_shared ? " (half of the free memory)" : "", advice);
}

/// Positions that tables of rotations are made for: no stream is longer than the model's context or than all pages.
std::uint64_t positions_max(const ModelFacts& facts, std::uint64_t memory) {
  std::uint64_t token_bytes = 0;
  for (const CacheGroup& group : facts.groups) {
    if (group.kind == CacheKind::kFull && !group.draft) token_bytes += group.page_bytes / limits::kKvPageTokens;
  }
  const auto context = static_cast<std::uint64_t>(facts.context_max);
  return token_bytes == 0 ? context : std::min(context, memory / token_bytes);
}

/// What logits, those of drafters among them, and tables of rotations leave of a GPU's memory: they grow with streams and contexts
/// (LanguageModel::reserve_passes, allocate_caches). On a host they are a small part of the half that is left alone.
MemoryAvailable beside_passes(const ModelFacts& facts, const EngineOptions& options, std::int32_t pass_rows,
                              MemoryAvailable available) {
  if (available.is_shared) return available;
  const std::int32_t lanes = options.lanes > 0 ? options.lanes : kAutoLanes;
  std::uint64_t logits_rows = std::bit_ceil(static_cast<std::uint64_t>(lanes + scored_rows_max(facts, pass_rows)));
  const bool drafts = std::any_of(facts.groups.begin(), facts.groups.end(), [](const CacheGroup& group) { return group.draft; });
  if (drafts) logits_rows += std::bit_ceil(static_cast<std::uint64_t>(lanes)) + limits::kDraftLogitsRowsMax;
  const std::uint64_t logits = logits_rows * static_cast<std::uint64_t>(facts.vocabulary_size) * sizeof(float);
  available.bytes -= std::min(available.bytes, logits);
  available.bytes -= std::min(available.bytes, saturating_multiply(positions_max(facts, available.bytes), facts.position_bytes));
  return available;
}

/// Memory for the lanes' caches.
std::uint64_t cache_memory(const EngineOptions& options, MemoryAvailable available) {
  if (options.cache_memory_bytes != 0) return options.cache_memory_bytes;
  if (available.is_shared) return available.bytes / 2;
  return options.lanes > 0 && options.context > 0 ? available.bytes : available.bytes / 4 * 3;
}

/// Memory for kept prefixes. Automatic: a quarter of what the lanes leave, of a GPU's memory half. A given size is refused when it would take
/// most of what is left, unless the options insist.
std::uint64_t prefix_bytes(const EngineOptions& options, std::uint64_t lane_bytes, MemoryAvailable available) {
  if (options.prompt_cache_bytes == 0) return 0;
  const std::uint64_t left = available.bytes - std::min(available.bytes, lane_bytes);
  if (options.prompt_cache_bytes < 0) return std::min(left / (available.is_shared ? 4 : 2), kAutoPrefixBytesMax);
  const auto wanted = static_cast<std::uint64_t>(options.prompt_cache_bytes);
  const std::uint64_t most = left / 100 * kPrefixShareMax;
  if (wanted > most && !options.prompt_cache_over_cap) {
    fail(ErrorCode::kResourceExhausted,
         "--prompt-cache-gib asks for {:.2f} GiB, but model and streams leave {:.2f} GiB, of which {}% may hold kept "
         "prefixes; ask for at most {:.2f}, or add --prompt-cache-over-cap.",
         mebibytes(wanted) / 1024, mebibytes(left) / 1024, kPrefixShareMax, mebibytes(most) / 1024);
  }
  return wanted;
}

/// States of kept prefixes lie in host memory: where the budget is ours to choose they take nothing of a GPU's share, and are
/// bounded by what the host has.
PrefixBudget prefix_budget(const ModelFacts& facts, const EngineOptions& options, std::uint64_t bytes,
                           MemoryAvailable available) {
  const PrefixBudget budget = plan_prefix_budget(facts.groups, bytes);
  if (available.is_shared || options.prompt_cache_bytes >= 0 || budget.snapshot_bytes == 0) return budget;
  const double in_host_share = static_cast<double>(budget.snapshot_bytes) / static_cast<double>(budget.bytes);
  const double host = static_cast<double>(host_memory_available()) / 4.0;
  const double gpu = static_cast<double>(bytes);
  const double whole = std::min(host / in_host_share, in_host_share < 1.0 ? gpu / (1.0 - in_host_share) : gpu);
  return plan_prefix_budget(facts.groups, static_cast<std::uint64_t>(whole));
}

}  // namespace

std::uint64_t lane_bytes(const ModelFacts& facts, std::int32_t context, std::int32_t pass_rows) {
  std::uint64_t bytes = 0;
  for (const CacheGroup& group : facts.groups) {
    const std::uint64_t pages = static_cast<std::uint64_t>(stream_pages_max(group, context, pass_rows));
    bytes = saturating_add(bytes, saturating_add(saturating_multiply(pages, group.page_bytes), slot_bytes(group)));
  }
  return bytes;
}

std::int32_t scored_rows_max(const ModelFacts& facts, std::int32_t pass_rows) {
  const std::size_t row_bytes = static_cast<std::size_t>(facts.vocabulary_size) * sizeof(float);
  return static_cast<std::int32_t>(
      std::clamp<std::size_t>(limits::kPassLogitsBytesMax / row_bytes, 1, static_cast<std::size_t>(pass_rows)));
}

Capacity plan_capacity(const ModelFacts& facts, const EngineOptions& options, MemoryAvailable available) {
  TF_ASSERT(facts.context_max > 0 && facts.pass_rows_max > 0 && facts.vocabulary_size > 0);
  check_options(facts, options);
  Capacity capacity;
  capacity.pass_rows =
      options.pass_rows_max > 0 ? std::min(options.pass_rows_max, facts.pass_rows_max) : facts.pass_rows_max;
  const std::int32_t rows = capacity.pass_rows;
  available = beside_passes(facts, options, rows, available);
  const std::uint64_t memory = cache_memory(options, available);
  const bool choose_context = options.context == 0;
  capacity.lanes = options.lanes;
  if (options.lanes == 0) {
    const std::int32_t wanted = choose_context ? std::min(facts.context_max, kComfortableContext) : options.context;
    capacity.lanes = std::max(1, most_lanes(facts, kAutoLanes, wanted, rows, memory));
  }
  capacity.context = options.context;
  if (choose_context) {
    capacity.context = longest_context(facts, capacity.lanes, facts.context_max, rows, memory);
    if (capacity.context < std::min(facts.context_max, limits::kKvPageTokens)) {
      refuse(facts, options, capacity.lanes, std::min(facts.context_max, limits::kKvPageTokens), rows, memory,
             available.is_shared);
    }
  } else if (total_bytes(facts, capacity.lanes, capacity.context, rows) > memory) {
    refuse(facts, options, capacity.lanes, capacity.context, rows, memory, available.is_shared);
  }
  capacity.cache_bytes = total_bytes(facts, capacity.lanes, capacity.context, rows);
  capacity.prefix_budget =
      prefix_budget(facts, options, prefix_bytes(options, capacity.cache_bytes, available), available);
  for (std::size_t g = 0; g < facts.groups.size(); ++g) {
    const std::int64_t pages =
        1 + capacity.prefix_budget.page_counts[g] +
        static_cast<std::int64_t>(capacity.lanes) * stream_pages_max(facts.groups[g], capacity.context, rows);
    if (pages > std::numeric_limits<std::int32_t>::max()) {
      fail(ErrorCode::kResourceExhausted, "The cache would have {} pages; lower --context or --parallel.", pages);
    }
    capacity.page_counts.push_back(static_cast<std::int32_t>(pages));
  }
  capacity.slot_count = 1 + capacity.lanes;
  capacity.window_rows = window_rows(facts, capacity.slot_count, rows, memory, capacity.cache_bytes);
  capacity.context_was_reduced = choose_context && capacity.context < facts.context_max;
  return capacity;
}

}  // namespace tensorfold
