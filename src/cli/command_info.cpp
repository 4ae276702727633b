// `tensorfold info MODEL`: what a checkpoint is and what it needs (api.md 1.5), without loading weights.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/describe.h"
#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/model_options.h"
#include "hub/resolve.h"
#include "model/drafter_description.h"
#include "model/load.h"
#include "ops/cpu/isa.h"
#include "serve/backend_choice.h"

namespace tensorfold::cli {
namespace {

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
constexpr std::uint64_t kRuntimeMarginBytes = 2ull << 30;

std::string format_line(const Checkpoint& checkpoint, const std::vector<FormatSummary>& formats) {
  const auto quantization = checkpoint.config().find("quantization");
  if (quantization != checkpoint.config().end() && quantization->is_object()) {
    const auto bits = quantization->find("bits");
    const auto group = quantization->find("group_size");
    if (bits != quantization->end() && bits->is_number_integer() && group != quantization->end() &&
        group->is_number_integer()) {
      return fmt::format("{}-bit, group {}", bits->get<std::int64_t>(), group->get<std::int64_t>());
    }
  }
  if (checkpoint.container() == Container::kGguf && !formats.empty())
    return fmt::format("gguf, mostly {}", formats[0].format);
  return "full precision";
}

std::string cpu_line() {
  try {
    return ops::cpu::cpu_path_name(ops::cpu::select_cpu_path());
  } catch (const Error& error) {
    return fmt::format("none ({})", error.what());
  }
}

std::string gpu_lines() {
  std::string reason, text;
  for (const ops::CudaDevice& gpu : gpus(reason)) {
    text += fmt::format("gpu {}: {}, {:.1f} GiB, compute capability {}.{}{}\n", gpu.index, gpu.name,
                        static_cast<double>(gpu.memory_bytes) / kGib, gpu.compute_capability / 10,
                        gpu.compute_capability % 10, gpu.unusable.empty() ? "" : " (can't be used: " + gpu.unusable + ")");
  }
  return text.empty() ? fmt::format("gpu: none ({})\n", reason) : text;
}

/// As with the processor: `info` tells what is wrong with a backend, and goes on.
std::string backend_line(const BackendChoice& choice) {
  try {
    return backend_title(choice);
  } catch (const Error& error) {
    return fmt::format("none ({})", error.what());
  }
}

/// What the checkpoint brings for drafting: its MTP head, and a block drafter beside it.
std::string draft_lines(const Checkpoint& checkpoint, const ModelDescription& description) {
  std::string text;
  if (const auto& mtp = description.mtp) {
    const auto file = std::filesystem::path(mtp->side_file).filename().string();
    text += fmt::format("mtp head: 1 layer, up to {} drafts{}\n", mtp->depth_max, file.empty() ? "" : ", in " + file);
  }
  const auto folder = find_drafter_folder(checkpoint);
  if (!folder) return text;
  try {
    const DrafterDescription drafter = describe_drafter(*Checkpoint::open(*folder), description);
    text += fmt::format("drafter: {} of {} layers, blocks of {}, in {}/\n", drafter.title, drafter.layers.size(),
                        drafter.block_rows, folder->filename().string());
  } catch (const Error& error) {
    text += fmt::format("drafter: none ({})\n", error.what());
  }
  return text;
}

}  // namespace

int run_info(const std::vector<std::string>& words) {
  const Arguments arguments = parse_arguments(kInfo, words);
  if (arguments.help()) {
    std::fputs(help_text(kInfo).c_str(), stdout);
    return 0;
  }
  const BackendChoice choice = backend_choice(arguments);
  const auto checkpoint = Checkpoint::open(resolve_model(arguments.model()));
  const ModelDescription description = describe_model(*checkpoint);
  const std::vector<FormatSummary> formats = describe_formats(*checkpoint);
  const std::uint64_t bytes = checkpoint->file_bytes();
  std::string text = fmt::format("family: {} ({})\n", description.title, description.family);
  text += fmt::format("format: {}\n", format_line(*checkpoint, formats));
  if (description.context_max > 0) text += fmt::format("context: {}\n", description.context_max);
  text += fmt::format("weights: {:.2f} GiB ({} bytes)\n", static_cast<double>(bytes) / kGib, bytes);
  text += fmt::format("memory floor: {:.2f} GiB (weights {:.2f} GiB + 2.00 GiB runtime margin)\n",
                      static_cast<double>(bytes + kRuntimeMarginBytes) / kGib, static_cast<double>(bytes) / kGib);
  text += draft_lines(*checkpoint, description);
  text += fmt::format("cpu path: {}\n", cpu_line());
  text += gpu_lines();
  text += fmt::format("backend: {}\n", backend_line(choice));
  text += "tensors:\n";
  for (const FormatSummary& format : formats) {
    text += fmt::format("  {:<28} {:>6} tensors {:>14} bytes\n", format.format, format.tensors, format.bytes);
  }
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace tensorfold::cli
