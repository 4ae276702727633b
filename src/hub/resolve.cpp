#include "hub/resolve.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/limits.h"

namespace tensorfold {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kNamePartBytesMax = 96;
constexpr std::size_t kCommitDigits = 40;
constexpr std::uintmax_t kConfigBytesMax = 4u << 20;  // of a config.json that is only listed
constexpr int kSnapshotEntriesMax = 100'000;

bool is_name_part(std::string_view part) {
  const auto allowed = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  };
  return !part.empty() && part.size() <= kNamePartBytesMax && part != "." && part != ".." &&
         std::all_of(part.begin(), part.end(), allowed);
}

bool is_commit(std::string_view text) {
  const auto digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return text.size() == kCommitDigits && std::all_of(text.begin(), text.end(), digit);
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

std::string folder_of(std::string_view repository) {
  const std::size_t slash = repository.find('/');
  return fmt::format("models--{}--{}", repository.substr(0, slash), repository.substr(slash + 1));
}

// The commit in refs/main; anything that isn't one is ignored before it could be joined into a path.
std::optional<std::string> main_commit(const fs::path& repository_folder) {
  std::ifstream file(repository_folder / "refs" / "main");
  std::string commit(kCommitDigits, '\0');
  file.read(commit.data(), kCommitDigits);
  if (file.gcount() != static_cast<std::streamsize>(kCommitDigits) || !is_commit(commit)) return std::nullopt;
  std::string rest;
  file >> rest;  // a newline may follow, nothing else
  if (!rest.empty()) return std::nullopt;
  return commit;
}

// api.md 1.9: refs/main when its snapshot exists, else the newest snapshot with a config.json.
std::optional<fs::path> find_snapshot(const fs::path& repository_folder) {
  const fs::path snapshots = repository_folder / "snapshots";
  const auto commit = main_commit(repository_folder);
  if (commit && is_folder(snapshots / *commit)) return snapshots / *commit;
  std::optional<fs::path> newest;
  fs::file_time_type newest_time;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(snapshots, error)) {
    if (!is_folder(entry.path()) || !is_file(entry.path() / "config.json")) continue;
    std::error_code time_error;
    const auto time = entry.last_write_time(time_error);
    // Equal times are decided by name, so that the answer doesn't depend on the order of a directory.
    const bool newer = !newest || time > newest_time || (time == newest_time && entry.path() > *newest);
    if (time_error || !newer) continue;
    newest = entry.path();
    newest_time = time;
  }
  return newest;
}

bool ends_with_gguf(std::string_view text) {
  return text.ends_with(".gguf") || text.ends_with(".GGUF");
}

bool looks_like_path(std::string_view text) {
  return text.starts_with("/") || text.starts_with("./") || text.starts_with("../") || text.starts_with("~") ||
         text == "." || text == ".." || ends_with_gguf(text);
}

fs::path resolve_repository(std::string_view repository) {
  const fs::path cache = hub_cache_folder();
  if (cache.empty()) {
    fail(ErrorCode::kNotFound, "no cache folder: set HF_HUB_CACHE, HF_HOME or HOME, or pass a folder or a .gguf file");
  }
  const fs::path folder = cache / folder_of(repository);
  if (const auto snapshot = find_snapshot(folder)) return *snapshot;
  fail(ErrorCode::kNotFound,
       "{0} isn't in the cache ({1}) and this build can't fetch it: run hf download {0}, or pass a folder or a .gguf "
       "file",
       repository, cache.string());
}

std::uint64_t snapshot_bytes(const fs::path& snapshot) {
  std::uint64_t total = 0;
  int entries = 0;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(snapshot, error)) {
    if (++entries > kSnapshotEntriesMax) break;
    std::error_code entry_error;
    if (!entry.is_regular_file(entry_error)) continue;
    const std::uintmax_t bytes = entry.file_size(entry_error);
    if (!entry_error) total += bytes;
  }
  return total;
}

// nullopt for a snapshot without a readable config.json: a listing shows what could be served and nothing else.
std::optional<std::string> model_type_of(const fs::path& snapshot) {
  const fs::path path = snapshot / "config.json";
  std::error_code error;
  if (!is_file(path) || fs::file_size(path, error) > kConfigBytesMax || error) return std::nullopt;
  std::ifstream file(path);
  const auto depth_bound = [](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    if (depth > limits::kCheckpointJsonDepthMax) fail(ErrorCode::kInvalidCheckpoint, "nested too deeply");
    return true;
  };
  try {
    const auto config = nlohmann::json::parse(file, depth_bound);
    const auto type = config.is_object() ? config.find("model_type") : config.end();
    if (config.is_object() && type != config.end() && type->is_string()) return type->get<std::string>();
  } catch (const std::exception&) {
    return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

bool is_repository_id(std::string_view text) {
  const std::size_t slash = text.find('/');
  return slash != std::string_view::npos && is_name_part(text.substr(0, slash)) && is_name_part(text.substr(slash + 1));
}

std::filesystem::path hub_cache_folder() {
  if (const std::string cache = environment("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const std::string home = environment("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  if (const std::string home = environment("HOME"); !home.empty()) return fs::path(home) / ".cache/huggingface/hub";
  return {};
}

std::filesystem::path resolve_model(std::string_view model) {
  const fs::path path{std::string(model)};
  if (model.empty() || model.find('\0') != std::string_view::npos) {
    fail(ErrorCode::kInvalidArgument, "no model was named; pass a folder, a .gguf file or OWNER/NAME");
  }
  if (is_folder(path)) return path;
  if (is_file(path)) {
    if (ends_with_gguf(model)) return path;
    fail(ErrorCode::kInvalidArgument, "{} is a file, but not a .gguf file; pass the checkpoint's folder", model);
  }
  if (looks_like_path(model)) {
    fail(ErrorCode::kNotFound, "{} isn't there; check the path, or pass a repository id such as OWNER/NAME", model);
  }
  const std::string_view without_revision = model.substr(0, model.find('@'));
  if (without_revision.size() < model.size() && is_repository_id(without_revision)) {
    fail(ErrorCode::kInvalidArgument, "{}: a revision can't be served by name; download it and use {}", model,
         without_revision);
  }
  if (!is_repository_id(model)) {
    fail(ErrorCode::kInvalidArgument,
         "{} is neither a folder, a .gguf file nor a repository id (OWNER/NAME, each 1 to {} of A-Z a-z 0-9 . _ -)",
         model, kNamePartBytesMax);
  }
  return resolve_repository(model);
}

std::string default_model_name(std::string_view model) {
  if (!is_folder(fs::path{std::string(model)}) && is_repository_id(model)) {
    if (!ends_with_gguf(model)) return std::string(model.substr(model.find('/') + 1));
  }
  std::error_code error;
  fs::path path = fs::absolute(fs::path{std::string(model)}, error).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // a trailing slash
  if (ends_with_gguf(model)) path = path.stem();
  const std::string name = path.filename().string();
  return name.empty() ? "model" : name;
}

std::vector<CachedCheckpoint> list_cached_checkpoints() {
  constexpr std::string_view kPrefix = "models--";
  std::vector<CachedCheckpoint> found;
  const fs::path cache = hub_cache_folder();
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(cache, error)) {
    const std::string folder = entry.path().filename().string();
    if (!folder.starts_with(kPrefix)) continue;
    const std::size_t separator = folder.find("--", kPrefix.size());
    if (separator == std::string::npos) continue;
    CachedCheckpoint checkpoint;
    checkpoint.repository =
        folder.substr(kPrefix.size(), separator - kPrefix.size()) + "/" + folder.substr(separator + 2);
    const auto snapshot = is_repository_id(checkpoint.repository) ? find_snapshot(entry.path()) : std::nullopt;
    const auto model_type = snapshot ? model_type_of(*snapshot) : std::nullopt;
    if (!model_type) continue;
    checkpoint.revision = snapshot->filename().string();
    checkpoint.path = *snapshot;
    checkpoint.model_type = *model_type;
    checkpoint.bytes = snapshot_bytes(*snapshot);
    found.push_back(std::move(checkpoint));
  }
  std::sort(found.begin(), found.end(),
            [](const auto& left, const auto& right) { return left.repository < right.repository; });
  return found;
}

}  // namespace tensorfold
