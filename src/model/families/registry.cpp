// The table of families: adding one is a file beside this and a row here.
#include <array>

#include "model/families/family.h"

namespace tensorfold {
namespace {

constexpr std::array kFamilies{
    Family{"llama", "Llama", describe_llama},
    Family{"qwen2", "Qwen2", describe_qwen2},
    Family{"qwen3", "Qwen3", describe_qwen3},
    Family{"qwen3_moe", "Qwen3 MoE", describe_qwen3_moe},
    Family{"gemma3_text", "Gemma 3", describe_gemma3},
    Family{"qwen3_5", "Qwen3.5", describe_qwen3_5},
    Family{"qwen3_5_text", "Qwen3.5", describe_qwen3_5},
    Family{"qwen3_5_moe", "Qwen3.5 MoE", describe_qwen3_5_moe},
    Family{"qwen3_5_moe_text", "Qwen3.5 MoE", describe_qwen3_5_moe},
};

}  // namespace

std::span<const Family> families() { return kFamilies; }

const Family* find_family(const std::string& model_type) {
  for (const auto& family : kFamilies) {
    if (model_type == family.model_type) return &family;
  }
  return nullptr;
}

}  // namespace tensorfold
