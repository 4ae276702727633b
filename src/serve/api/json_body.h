// Parses a request body under limits: UTF-8 checked, depth and object size bounded before anything is built on them,
// whole numbers beyond 64 bits kept exactly (as digit strings, which every numeric field accepts). Objects keep their
// order, because templates render message data in the caller's order.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace tensorfold {

/// Any JSON value; `name` is what messages call the text. Throws ApiError(400) for malformed JSON and over a limit.
nlohmann::ordered_json parse_json_text(std::string_view text, std::string_view name);

/// An empty body reads as {}. Throws ApiError(400) for malformed JSON, for anything but an object, and over a limit.
nlohmann::ordered_json parse_json_body(std::string_view body);

/// Compact UTF-8 JSON text; bytes that aren't UTF-8 become U+FFFD.
std::string dump_json(const nlohmann::ordered_json& json);

}  // namespace tensorfold
