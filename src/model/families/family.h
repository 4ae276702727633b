// What a family is: config.json -> description. One file a family, one row in the registry; a family has no decode loop,
// cache, kernel or server code of its own.
#pragma once

#include <span>
#include <string>

#include "checkpoint/checkpoint.h"
#include "model/config_reader.h"
#include "model/description.h"
#include "model/tensor_names.h"

namespace tensorfold {

/// What a family may look at besides the text config: facts that decide between conventions, never tensor values.
struct FamilyInput {
  const ConfigReader& config;  // text_config where there is one
  const Checkpoint& checkpoint;
  const TensorNames& names;
  bool tied_embeddings = false;  // resolved: no head of its own
};

struct Family {
  const char* model_type;
  const char* title;
  ModelDescription (*describe)(const FamilyInput& input);
};

std::span<const Family> families();
/// nullptr when no family serves `model_type`.
const Family* find_family(const std::string& model_type);

ModelDescription describe_llama(const FamilyInput& input);
ModelDescription describe_qwen2(const FamilyInput& input);
ModelDescription describe_qwen3(const FamilyInput& input);
ModelDescription describe_qwen3_moe(const FamilyInput& input);
ModelDescription describe_gemma3(const FamilyInput& input);
ModelDescription describe_qwen3_5(const FamilyInput& input);
ModelDescription describe_qwen3_5_moe(const FamilyInput& input);

}  // namespace tensorfold
