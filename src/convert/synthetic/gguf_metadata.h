// The metadata of a GGUF file for a made-up model: llama.cpp's keys from a config.json, and the vocabulary's.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/gguf_writer.h"
#include "convert/synthetic/presets.h"
#include "convert/synthetic/vocabulary.h"

namespace tensorfold {

/// `text`: the text model's configuration. `format`: of most matrices ("q4_0").
std::vector<GgufEntry> gguf_model_metadata(const SyntheticPreset& preset, const nlohmann::json& text,
                                           const std::string& format, const SyntheticVocabulary& vocabulary);

/// What Checkpoint::config() says of a file with this metadata.
nlohmann::json gguf_config(const std::vector<GgufEntry>& metadata);

}  // namespace tensorfold
