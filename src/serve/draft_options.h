// What a server drafts from, between flags and engine: where the recall store lies and which tokenizer's it is, and
// which folder holds the block drafter.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine/draft/recall_store.h"
#include "model/load.h"
#include "text/tokenizer.h"

namespace tensorfold {

struct RecallFlags {
  std::string folder;  // "" = ~/.cache/tensorfold/recall
  std::uint64_t bytes_max = 64u << 20;
  bool read_only = false;
};

struct DraftFlags {
  bool drafts = true;   // --no-drafts
  std::string drafter;  // --drafter: folder or cached repository; "" = dflash2/ beside the checkpoint, if it is there
  std::int32_t drafter_bits = 4;  // 0 or 4
  std::optional<std::int32_t> mtp_drafts;
  std::optional<double> mtp_confidence;
  std::optional<RecallFlags> recall;
};

/// A hash of what each id stands for: files of token ids mean nothing under another tokenizer.
RecallIdentity tokenizer_identity(const Tokenizer& tokenizer);

/// Null without --recall or with --no-drafts. Throws Error that says what is wrong with the folder. `vocabulary_size`:
/// ids that may be in it. Logs where it is.
std::shared_ptr<RecallStore> open_recall(const DraftFlags& flags, const Tokenizer& tokenizer,
                                         std::int32_t vocabulary_size);

/// Which of the model's drafters are loaded. Throws Error when --drafter names nothing.
void set_drafters(const DraftFlags& flags, LoadOptions& load);

}  // namespace tensorfold
