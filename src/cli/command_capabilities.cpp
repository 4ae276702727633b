// `tensorfold capabilities --json`: what this build serves, for programs (api.md 1.3), from the same tables that
// parsing and loading use.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/flags.h"
#include "model/families/family.h"
#include "serve/backend_choice.h"

namespace tensorfold::cli {
namespace {

using Json = nlohmann::ordered_json;

Json flags_of(Command command) {
  Json flags = Json::object();
  for (const Flag& flag : flag_table()) {
    if ((flag.commands & command) == 0) continue;
    Json entry = Json::object();
    if (!flag.choices.empty()) entry["values"] = flag.choices;
    flags[std::string(flag.name)] = std::move(entry);
  }
  return flags;
}

Json family_formats() {
  const Json formats = {"f32", "f16", "bf16", "affine", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k"};
  Json families = Json::object();
  for (const Family& family : tensorfold::families()) families[std::string(family.model_type)] = formats;
  return families;
}

Json gpu_list() {
  Json list = Json::array();
  std::string reason;
  for (const ops::CudaDevice& gpu : gpus(reason)) {
    list.push_back({{"index", gpu.index},
                    {"name", gpu.name},
                    {"compute_capability", fmt::format("{}.{}", gpu.compute_capability / 10, gpu.compute_capability % 10)},
                    {"memory_bytes", gpu.memory_bytes},
                    {"usable", gpu.unusable.empty()}});
  }
  return list;
}

}  // namespace

const char* version() {
  return TENSORFOLD_VERSION;
}

int run_capabilities(const std::vector<std::string>& words) {
  constexpr const char* kUsageText = "usage: tensorfold capabilities --json\n";
  if (std::find(words.begin(), words.end(), "--help") != words.end() ||
      std::find(words.begin(), words.end(), "-h") != words.end()) {
    std::printf("%s\nPrints what this build serves, for programs: one JSON object with its flags, families, backends and GPUs.\n",
                kUsageText);
    return 0;
  }
  if (words.size() != 1 || words[0] != "--json") {
    std::fputs(kUsageText, stderr);
    return 2;
  }
  const Json document = {{"schema", 1},
                         {"engine", "cpp"},
                         {"version", version()},
                         {"chip", nullptr},
                         {"backends", backend_names()},
                         {"gpus", gpu_list()},
                         {"families", family_formats()},
                         {"serve", {{"flags", flags_of(kServe)}}},
                         {"bench", {{"flags", flags_of(kBench)}}},
                         {"env", {"TENSORFOLD_API_KEY", "TENSORFOLD_CPU_PATH", "TENSORFOLD_GPU_MEMORY_GIB", "TENSORFOLD_NO_GRAPHS",
                           "TENSORFOLD_CUDA_PATH", "HF_HOME", "HF_HUB_CACHE"}}};
  std::printf("%s\n", document.dump().c_str());
  return 0;
}

}  // namespace tensorfold::cli
