// See bench_options.h.
#include "cli/bench_options.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <sstream>
#include <utility>

#include "base/limits.h"
#include "cli/model_options.h"

namespace tensorfold::cli {
namespace {

constexpr std::int32_t kListValueMax = 1 << 22;

std::optional<BenchPart> part_named(const std::string& word) {
  constexpr std::pair<const char*, BenchPart> kParts[] = {{"kernels", BenchPart::kKernels},
                                                          {"decode", BenchPart::kDecode},
                                                          {"prefill", BenchPart::kPrefill},
                                                          {"concurrency", BenchPart::kConcurrency},
                                                          {"load", BenchPart::kLoad}};
  for (const auto& [name, part] : kParts) {
    if (word == name) return part;
  }
  return std::nullopt;
}

/// "1,4,8".
void read_list(const Arguments& arguments, const char* flag, std::int32_t value_max, std::vector<std::int32_t>& list) {
  const auto text = arguments.text(flag);
  if (!text) return;
  list.clear();
  std::stringstream items(*text);
  for (std::string item; std::getline(items, item, ',');) {
    std::int32_t value = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), value);
    if (error != std::errc() || end != item.data() + item.size() || value < 1 || value > value_max) {
      throw UsageError(fmt::format("argument {}: '{}' is not a number from 1 to {}", flag, item, value_max));
    }
    list.push_back(value);
  }
  if (list.empty()) throw UsageError(fmt::format("argument {}: expected numbers like 1,4,8", flag));
}

template <typename Number>
void read_number(const Arguments& arguments, const char* flag, Number& value) {
  if (const auto given = arguments.number(flag)) value = static_cast<Number>(*given);
}

void read_words(const Arguments& arguments, BenchOptions& options) {
  for (const std::string& word : arguments.words()) {
    if (const auto part = part_named(word)) {
      options.parts.insert(*part);
    } else if (options.model.empty() && !options.synthetic) {
      options.model = word;
    } else {
      throw UsageError(fmt::format("unrecognized arguments: {}", word));
    }
  }
  if (options.model.empty() && !options.synthetic) {
    throw UsageError("the following arguments are required: MODEL or --synthetic PRESET");
  }
  if (options.parts.empty() && options.gguf_file.empty() && options.mlx_folder.empty()) {
    throw UsageError("nothing to measure: name kernels, decode, prefill, concurrency or load");
  }
}

void read_synthetic(const Arguments& arguments, BenchOptions& options) {
  options.gguf_file = arguments.text("--write-gguf").value_or("");
  options.mlx_folder = arguments.text("--write-mlx").value_or("");
  const auto preset = arguments.text("--synthetic");
  if (!preset) {
    for (const char* flag : {"--format", "--layers", "--mtp", "--write-gguf", "--write-mlx"}) {
      if (arguments.has(flag)) throw UsageError(fmt::format("argument {}: only with --synthetic", flag));
    }
    return;
  }
  if (!options.gguf_file.empty() && !options.mlx_folder.empty()) {
    throw UsageError("argument --write-gguf: not allowed with --write-mlx");
  }
  SyntheticOptions synthetic;
  synthetic.preset = *preset;
  synthetic.format = arguments.text("--format").value_or(synthetic.format);
  synthetic.gguf = !options.gguf_file.empty();
  synthetic.layers = arguments.integer("--layers").value_or(0);
  synthetic.mtp = arguments.has("--mtp");
  synthetic.seed = options.seed;
  synthetic.threads = options.backend.threads;
  options.synthetic = synthetic;
}

}  // namespace

std::string BenchOptions::model_name() const {
  return synthetic ? "synthetic:" + synthetic->preset : model;
}

BenchOptions bench_options(const Arguments& arguments) {
  BenchOptions options;
  options.backend = model_options(arguments);
  options.seed = seed_from(arguments.text("--seed").value_or("1"));
  read_synthetic(arguments, options);
  read_words(arguments, options);
  read_number(arguments, "--context", options.context);
  read_number(arguments, "--reply-tokens", options.reply_tokens);
  read_list(arguments, "--prompt-tokens", kListValueMax, options.prompt_tokens);
  read_list(arguments, "--streams", limits::kLanesMax, options.streams);
  if (arguments.has("--streams")) options.kernel_lanes = options.streams;
  read_list(arguments, "--rows", kListValueMax, options.rows);
  read_number(arguments, "--accepted", options.accepted);
  read_number(arguments, "--compare-streams", options.compare_streams_max);
  options.compare_drafts = arguments.has("--compare-drafts");
  read_number(arguments, "--repeat-passage", options.repeated_tokens);
  read_number(arguments, "--temperature", options.temperature);
  read_number(arguments, "--repeats", options.repeats);
  read_number(arguments, "--peak-gbps", options.peak_bytes_per_second);
  options.peak_bytes_per_second *= 1e9;
  options.json = arguments.has("--json");
  options.output = arguments.text("--output").value_or("");
  return options;
}

}  // namespace tensorfold::cli
