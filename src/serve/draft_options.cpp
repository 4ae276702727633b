// See draft_options.h.
#include "serve/draft_options.h"

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/log.h"
#include "hub/resolve.h"
#include "serve/api_keys.h"

namespace tensorfold {
namespace {

std::filesystem::path default_recall_folder() {
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') {
    fail(ErrorCode::kInvalidArgument,
         "recall: HOME isn't set, so there is no folder for it; give one with --recall-dir");
  }
  return std::filesystem::path(home) / ".cache" / "tensorfold" / "recall";
}

}  // namespace

RecallIdentity tokenizer_identity(const Tokenizer& tokenizer) {
  std::string text = "tensorfold tokenizer 1\n";
  for (std::int32_t id = 0; id < tokenizer.size(); ++id) {
    const std::string_view token = tokenizer.token_text(id);
    text += fmt::format("{} {} ", token.size(), tokenizer.is_special(id) ? 1 : 0);
    text += token;
  }
  const Sha256Digest digest = sha256(text);
  RecallIdentity identity{};
  std::copy_n(digest.begin(), identity.size(), identity.begin());
  return identity;
}

std::shared_ptr<RecallStore> open_recall(const DraftFlags& flags, const Tokenizer& tokenizer,
                                         std::int32_t vocabulary_size) {
  if (!flags.recall || !flags.drafts) return nullptr;
  RecallOptions options;
  options.folder = flags.recall->folder.empty() ? default_recall_folder() : std::filesystem::path(flags.recall->folder);
  options.bytes_max = flags.recall->bytes_max;
  options.read_only = flags.recall->read_only;
  options.identity = tokenizer_identity(tokenizer);
  options.vocabulary_size = vocabulary_size;
  auto store = std::make_shared<RecallStore>(options);
  spdlog::info("recall: {} token ids of earlier requests in {} ({})", store->token_count(), store->path().string(),
               store->is_read_only() ? "read only"
                                     : fmt::format("what requests hold is kept there, at most {:.4g} GiB",
                                                   static_cast<double>(options.bytes_max) / (1ull << 30)));
  return store;
}

void set_drafters(const DraftFlags& flags, LoadOptions& load) {
  load.mtp = flags.drafts && flags.mtp_drafts != 0;
  load.find_drafter = flags.drafts;
  load.drafter_bits = flags.drafter_bits;
  if (flags.drafts && !flags.drafter.empty()) load.drafter_path = resolve_model(flags.drafter).string();
}

}  // namespace tensorfold
