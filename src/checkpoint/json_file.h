// JSON files of a checkpoint read under limits: size, depth and, where a repeated key would hide one of two values, a
// check for repeats. The parser underneath is the library's; what it may be fed is decided here.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

namespace tensorfold {

enum class RepeatedKeys { kLastWins, kRefuse };

/// The object in `path`. Throws Error(kNotFound | kInvalidCheckpoint) that names the file; the top level must be an
/// object.
nlohmann::json read_json_object(const std::filesystem::path& path, RepeatedKeys repeated = RepeatedKeys::kLastWins);

/// A name from a file, quoted for a message: printable, and not longer than a line.
std::string in_quotes(std::string_view name);

}  // namespace tensorfold
