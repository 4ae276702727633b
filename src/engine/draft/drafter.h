// Drives the draft sources of an engine: opens and closes their states with the streams, hands them the rows of each
// pass, asks them for drafts as deep as pays, and makes each decoding stream's next window. A source that runs a model
// and doesn't pay sleeps for that stream, and is woken where a try can be paid from its account. Everything that can go
// wrong in a source ends here: it is silenced for the streams it failed, and they go on without it.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "engine/cost_model.h"
#include "engine/draft/draft_source.h"
#include "engine/stream.h"

namespace tensorfold {

struct DrafterLimits {
  std::int32_t vocabulary_size = 0;
  std::int32_t window_rows = 1;         // of a lone stream's window
  std::int32_t shared_window_rows = 1;  // while several streams decode
};

/// What a pass did for one stream that goes on.
struct FedRows {
  Stream* stream = nullptr;
  std::vector<AbsorbRow> rows;       // committed, ascending
  std::int32_t fed_drafts = 0;       // nodes of the stream's window that were rows of the pass
  std::vector<std::int32_t> landed;  // those on the accepted path
};

class Drafter {
 public:
  /// `schedule_seed` != 0: depths and sources at random (the fold test), and with some seeds they sleep at random.
  Drafter(std::vector<std::shared_ptr<DraftSource>> sources, const DrafterLimits& limits, std::uint64_t schedule_seed);

  /// At admission, and after the stream's last event.
  void open(Stream& stream);
  void close(Stream& stream);
  DraftKind kind(std::int32_t source) const { return sources_[static_cast<std::size_t>(source)]->facts().kind; }
  /// RowFlags that the stream's rows need for the sources' sake.
  std::uint32_t row_flags(const Stream& stream) const;
  /// After a pass: learns what landed, hands out what was committed, and makes the next window of every stream in
  /// `fed`. `lanes`: streams that decode now.
  void after_pass(std::vector<FedRows>& fed, std::int32_t lanes, const CostModel& costs);

 private:
  /// What a source was found to be, over all streams.
  struct Known {
    double absorb_seconds = 0.0;   // of an absorb() that ends in proposals
    double listen_seconds = 0.0;   // of one that doesn't, per stream
    double propose_seconds = 0.0;  // of propose(): per level, or whole where depth costs nothing
    DepthRule history;             // what landed
    DraftAccount account;
  };
  struct Round;

  DraftStream view(Stream& stream, std::size_t source) const;
  void begin_round(const Round& round);
  void observe(const FedRows& fed, const Round& round);
  void begin_window(Stream& stream);
  std::int32_t room(const Stream& stream, std::int32_t lanes) const;
  DepthRule::Ask depth_to_ask(Stream& stream, std::size_t source, const Round& round);
  DepthRule::Ask ask_at_random(Stream& stream, std::size_t source, std::int32_t most);
  /// `ask` where the rule finds that it pays, a try where that can be afforded, none otherwise.
  DepthRule::Ask affordable(Stream& stream, std::size_t source, DepthRule::Ask ask, const Round& round);
  DraftCost cost_of(std::size_t source) const;
  double affordable_seconds(const Stream& stream, std::size_t source) const;
  void charge(Stream& stream, std::size_t source, double seconds);
  bool window_is_as_good(const Stream& stream, const DepthRule::Ask& ask, const Round& round) const;
  /// Per stream of the round; depth 0: don't.
  std::vector<DepthRule::Ask> asks_of(std::size_t source, const Round& round);
  void absorb(std::size_t source, const Round& round, const std::vector<DepthRule::Ask>& asks);
  void note_absorbed(std::size_t source, const std::vector<Stream*>& streams, const std::vector<DraftAbsorb>& batch,
                     double seconds);
  void propose(std::size_t source, const Round& round, const std::vector<DepthRule::Ask>& asks);
  void take(std::size_t source, Stream& stream, DraftProposal proposal, const Round& round);
  void silence(Stream& stream, std::size_t source, std::string_view why);

  std::vector<std::shared_ptr<DraftSource>> sources_;
  std::vector<Known> known_;  // parallel to sources_
  DrafterLimits limits_;
  bool at_random_;
  bool sleeps_at_random_;
  std::mt19937_64 random_;
};

}  // namespace tensorfold
