// What the chat template tests share: rendering to one string, and the files with values made by jinja2.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>

#include "base/error.h"
#include "text/chat_template.h"

namespace tensorfold {

inline std::string read_whole_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

inline nlohmann::ordered_json read_template_golden(const std::string& name) {
  return nlohmann::ordered_json::parse(
      read_whole_file(std::filesystem::path(TENSORFOLD_SOURCE_DIR) / "tests/golden/templates" / name));
}

/// The text of a render, or the message of its error with `failed` set.
struct RenderedText {
  std::string text;
  bool failed = false;
};

inline RenderedText render_text(const ChatTemplate& chat_template, const nlohmann::ordered_json& variables,
                                std::int64_t now) {
  try {
    std::string text;
    for (const PromptSegment& segment : chat_template.render(variables, now)) text += segment.text;
    return {text, false};
  } catch (const Error& error) {
    return {error.what(), true};
  }
}

inline RenderedText render_source(const std::string& source, const nlohmann::ordered_json& variables,
                                  std::int64_t now) {
  try {
    return render_text(*ChatTemplate::compile(source), variables, now);
  } catch (const Error& error) {
    return {error.what(), true};
  }
}

}  // namespace tensorfold
