// What a stream holds for drafting: its states in the sources, how well each of them did, and the window it feeds next.
// The stream owns it and it dies with the stream (engine.md, N4); the Drafter fills it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/draft/depth_rule.h"
#include "engine/draft/draft_source.h"
#include "engine/draft/draft_window.h"

namespace tensorfold {

struct StreamDrafts {
  struct Source {
    std::unique_ptr<DraftState> state;  // null: it has nothing to offer, or was silenced
    DepthRule rule;
  };
  std::vector<Source> sources;  // parallel to the engine's; empty: this stream never drafts
  DraftWindow window;           // of the next pass
};

}  // namespace tensorfold
