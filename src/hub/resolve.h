// From what a user typed to a checkpoint on disk: a folder, a .gguf file, or a repository id in the Hugging Face cache
// (api.md 1.6 and 1.9). Reads the cache that other tools share and never the network: fetching is `pull`'s.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tensorfold {

/// The folder or .gguf file that `model` names. Throws Error(kInvalidArgument) when it can't be a model's name, and
/// Error(kNotFound) that says how to get it, or what is wrong with the path.
std::filesystem::path resolve_model(std::string_view model);

/// The served name without --name: the last component of the repository id or folder, the stem of a .gguf file.
std::string default_model_name(std::string_view model);

/// OWNER/NAME, both 1 to 96 characters of [A-Za-z0-9._-] and neither "." nor "..".
bool is_repository_id(std::string_view text);

/// HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub. Empty when the environment names none.
std::filesystem::path hub_cache_folder();

struct CachedCheckpoint {
  std::string repository;  // OWNER/NAME
  std::string revision;    // the snapshot's commit
  std::filesystem::path path;
  std::string model_type;   // of its config.json
  std::uint64_t bytes = 0;  // all files, links followed
};

/// What `resolve_model` would find in the cache, ordered by repository. Unreadable entries are left out.
std::vector<CachedCheckpoint> list_cached_checkpoints();

}  // namespace tensorfold
