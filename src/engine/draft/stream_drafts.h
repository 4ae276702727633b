// What a stream holds for drafting: its states in the sources, how well each of them did, and the window it feeds next.
// The stream owns it and it dies with the stream (engine.md, N4); the Drafter fills it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/draft/depth_rule.h"
#include "engine/draft/draft_account.h"
#include "engine/draft/draft_source.h"
#include "engine/draft/draft_window.h"

namespace tensorfold {

struct StreamDrafts {
  static constexpr std::int32_t kRowsAfterGap = 8;  // rows that a source hears after it slept, before it drafts again
  struct Source {
    std::unique_ptr<DraftState> state;  // null: it has nothing to offer, or was silenced
    DepthRule rule;
    DraftAccount account;
    bool pays = false;      // as the rule last saw it
    bool missed = false;    // nothing of its last window landed
    bool listens = true;    // rows of the next pass are kept for it; otherwise it sleeps, and costs nothing
    bool has_rows = true;   // those of the last pass were
    std::int32_t rows_since_gap = kRowsAfterGap;
  };
  std::vector<Source> sources;  // parallel to the engine's; empty: this stream never drafts
  DraftWindow window;           // of the next pass
};

}  // namespace tensorfold
