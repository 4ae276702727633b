// A draft source for the fold test and the engine's own: it knows the reply that a stream will give and proposes it
// with mistakes, right up to a depth drawn at random and wrong behind it, as chains and as trees. So windows are cut
// short at every depth, siblings land, and whatever a rejected row leaves behind has someone to read it. It also checks
// that the engine keeps the contract of draft_source.h.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "base/limits.h"
#include "engine/draft/draft_source.h"

namespace tensorfold::fold {

/// Contexts (prompt and reply) that streams will have. Any thread.
class KnownReplies {
 public:
  void add(std::vector<std::int32_t> context);
  /// The token that follows `context` in one of them, or -1.
  std::int32_t next_token(const std::vector<std::int32_t>& context) const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::vector<std::int32_t>> contexts_;
};

struct OracleOptions {
  DraftSourceFacts facts{DraftKind::kMtp, false, false, false, false, 15, 15, 0.5};
  std::int32_t vocabulary_size = 0;
  double wrong_share = 0.2;  // of the drafts
  double tree_share = 0.5;   // of the proposals, where trees may be had
  std::uint64_t seed = 1;
  std::shared_ptr<const KnownReplies> known;  // where it knows nothing, it guesses
};

class OracleSource : public DraftSource {
 public:
  explicit OracleSource(OracleOptions options) : options_(std::move(options)), random_(options_.seed) {}

  const DraftSourceFacts& facts() const override { return options_.facts; }
  std::unique_ptr<DraftState> open(const DraftStream& stream) override;
  void absorb(std::vector<DraftAbsorb>& batch) override;
  void propose(std::vector<DraftRequest>& batch) override;
  void observe(const DraftStream& stream, const DraftProposal& proposal, std::int32_t fed_count,
               const std::vector<std::int32_t>& landed) override;
  void close(const DraftStream& stream) override;

  // Counters; any thread.
  std::atomic<int> opened{0}, closed{0}, proposed{0}, contract_breaches{0};
  std::atomic<int> chains{0}, trees{0};  // that were fed
  /// Windows by how many of their drafts landed.
  std::array<std::atomic<int>, limits::kWideWindowRowsMax> landed_windows{};

 private:
  struct State;
  State& state_of(const DraftStream& stream);
  void require(bool condition) { contract_breaches += condition ? 0 : 1; }
  std::int32_t draw(std::int32_t low, std::int32_t high);
  bool chance(double share);
  void fill(DraftRequest& request, bool tree);

  OracleOptions options_;
  std::mt19937_64 random_;
};

}  // namespace tensorfold::fold
