// Teacher-forced logits of a token list, for quality measurements by tools/quality.py:
//
//   dump_logits MODEL TOKENS_FILE OUTPUT_FILE [--backend cpu|cuda|reference] [--rounding none|backend] [--decode-rows N]
//
// TOKENS_FILE: ids separated by blanks. OUTPUT_FILE: raw fp32 [tokens, vocabulary], row i = logits after token i. The last
// N tokens are read one a pass, as a reply's are; the others in slices, as a prompt's. `--backend cuda` takes the first GPU.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/limits.h"
#include "checkpoint/checkpoint.h"
#include "model/load.h"
#include "ops/cpu/cpu_backend.h"
#if defined(TENSORFOLD_HAS_CUDA)
#include "ops/cuda/cuda_backend.h"
#endif
#include "ops/reference/reference_backend.h"

namespace tensorfold {
namespace {

constexpr std::size_t kRowsPerPass = 64;  // bounds the logits buffer

std::vector<std::int32_t> read_tokens(const std::string& path) {
  std::ifstream file(path);
  if (!file) fail(ErrorCode::kNotFound, "cannot open {}", path);
  std::vector<std::int32_t> tokens;
  for (std::int32_t token; file >> token;) tokens.push_back(token);
  if (tokens.empty()) fail(ErrorCode::kInvalidArgument, "{} holds no token ids", path);
  return tokens;
}

RoundPlan plan(const LanguageModel& model, const std::vector<std::int32_t>& tokens, std::size_t first,
               std::size_t count) {
  RoundPlan result;
  PlanLane lane;
  lane.slot = 1;
  lane.row_count = static_cast<std::int32_t>(count);
  lane.position = static_cast<std::int32_t>(first);
  for (const auto& group : model.facts().groups) {
    PageTable table(group.kind == CacheKind::kRecurrent ? 0 : tokens.size() / limits::kKvPageTokens + 1);
    std::iota(table.begin(), table.end(), 1);
    lane.pages.push_back(std::move(table));
  }
  for (std::size_t i = first; i < first + count; ++i) {
    PlanRow row;
    row.token = tokens[i];
    row.sequence_index = static_cast<std::int32_t>(i);
    row.parent_row = i == first ? -1 : static_cast<std::int32_t>(i - first) - 1;
    row.rope_position.fill(row.sequence_index);
    row.flags = kRowWantsLogits;
    result.rows.push_back(row);
  }
  result.lanes.push_back(std::move(lane));
  return result;
}

std::unique_ptr<ops::Backend> make_backend(const std::string& name, const std::string& rounding) {
  if (name == "reference") {
    return ops::make_reference_backend(rounding == "none" ? ops::Rounding::kNone : ops::Rounding::kBackend, 2);
  }
  if (name == "cpu") return ops::make_cpu_backend({});
#if defined(TENSORFOLD_HAS_CUDA)
  if (name == "cuda") return ops::make_cuda_backend({});
#endif
  fail(ErrorCode::kInvalidArgument, "this build has no backend '{}'", name);
}

int run(int argc, char** argv) {
  if (argc < 4) fail(ErrorCode::kInvalidArgument, "usage: dump_logits MODEL TOKENS_FILE OUTPUT_FILE [--backend ...]");
  std::string backend_name = "cpu", rounding = "none";
  std::size_t decode_rows = 0;
  for (int i = 4; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--backend") {
      backend_name = argv[i + 1];
    } else if (flag == "--rounding") {
      rounding = argv[i + 1];
    } else if (flag == "--decode-rows") {
      decode_rows = std::stoul(argv[i + 1]);
    } else {
      fail(ErrorCode::kInvalidArgument, "unknown argument {}", flag);
    }
  }
  const auto tokens = read_tokens(argv[2]);
  const std::size_t prompt_tokens = tokens.size() - std::min(decode_rows, tokens.size());
  auto model = load_language_model(Checkpoint::open(argv[1]), make_backend(backend_name, rounding), {});
  const auto pages = static_cast<std::int32_t>(tokens.size() / limits::kKvPageTokens + 2);
  model->allocate_caches(std::vector<std::int32_t>(model->facts().groups.size(), pages), 2, limits::kWindowRowsMax);
  std::ofstream out(argv[3], std::ios::binary);
  for (std::size_t first = 0, count = 0; first < tokens.size(); first += count) {
    count = first < prompt_tokens ? std::min(kRowsPerPass, prompt_tokens - first) : 1;
    ForwardResult result;
    model->forward(plan(*model, tokens, first, count), result);
    out.write(reinterpret_cast<const char*>(result.logits),
              static_cast<std::streamsize>(count * static_cast<std::size_t>(model->facts().vocabulary_size) * 4));
    std::fprintf(stderr, "\r%zu of %zu tokens", first + count, tokens.size());
  }
  std::fprintf(stderr, "\n");
  if (!out) fail(ErrorCode::kResourceExhausted, "cannot write {}", argv[3]);
  return 0;
}

}  // namespace
}  // namespace tensorfold

int main(int argc, char** argv) {
  try {
    return tensorfold::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dump_logits: %s\n", error.what());
    return 1;
  }
}
