// `tensorfold bench`: how fast this engine is here, on a checkpoint or on random weights in a real model's shapes. What is
// measured and how is engine/measure's, how weights are made up convert/synthetic's; here are the order of the parts and
// the report.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"
#include "cli/bench_options.h"
#include "cli/bench_report.h"
#include "cli/commands.h"
#include "cli/machine.h"
#include "cli/progress.h"
#include "cli/terminal_text.h"
#include "convert/convert.h"
#include "convert/synthetic/write_synthetic.h"
#include "engine/measure/measure.h"
#include "engine/measure/model_check.h"
#include "engine/measure/operation_times.h"
#include "hub/resolve.h"
#include "model/load.h"
#include "text/tokenizer.h"

namespace tensorfold::cli {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr std::int32_t kWindowRowsMax = limits::kWindowRowsMax;  // kernels: more rows are those of a prompt

std::string hash_text(std::uint64_t hash) {
  return fmt::format("{:016x}", hash);
}

/// tokenizer.json and what goes with it, for engines that don't start without.
std::map<std::string, std::string> tokenizer_files(const SyntheticVocabulary& vocabulary) {
  GgufVocabulary source;
  source.model = "gpt2";
  source.pre = vocabulary.pre_tokenizer;
  source.tokens = vocabulary.tokens;
  source.token_types = vocabulary.types;
  source.merges = vocabulary.merges;
  source.bos_token = vocabulary.bos_token;
  source.eos_token = vocabulary.eos_token;
  const std::string& end = vocabulary.tokens.at(static_cast<std::size_t>(vocabulary.eos_token));
  const nlohmann::json settings{{"tokenizer_class", "PreTrainedTokenizerFast"}, {"eos_token", end}};
  return {{"tokenizer.json", gguf_tokenizer_json(source)}, {"tokenizer_config.json", settings.dump(2) + "\n"}};
}

void write_report(const std::string& path, const std::string& json) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << json << std::flush;
  if (!file) fail(ErrorCode::kInvalidArgument, "{}: can't be written", path);
}

class Bench {
 public:
  Bench(const BenchOptions& options, const std::string& command) : options_(options) {
    report_["command"] = command;
    report_["commit"] = build_commit();
    report_["date"] = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
    const Machine machine = this_machine();
    report_["machine"] = {
        {"processor", machine.processor}, {"cores", machine.cores}, {"memory_bytes", machine.memory_bytes}};
    report_["model"] = options.model_name();
    report_["repeats"] = options.repeats;
  }

  Json run() {
    open();
    if (!options_.gguf_file.empty() || !options_.mlx_folder.empty()) write();
    if (options_.wants(BenchPart::kLoad)) load();
    const bool needs_engine = options_.wants(BenchPart::kDecode) || options_.wants(BenchPart::kPrefill) ||
                              options_.wants(BenchPart::kConcurrency);
    if (needs_engine || options_.wants(BenchPart::kLoad)) {
      if (model_ == nullptr) model_ = load_model(make_backend(options_.backend));
      check();
    }
    if (options_.wants(BenchPart::kDecode)) decode();
    if (options_.wants(BenchPart::kPrefill)) prefill();
    if (options_.wants(BenchPart::kConcurrency)) concurrency();
    if (options_.wants(BenchPart::kKernels)) kernels();
    report_["peak_resident_bytes"] = peak_resident_bytes();
    progress_.clear();
    return std::move(report_);
  }
  /// Whether everything that was compared agreed and all logits were finite.
  bool is_sound() const { return is_sound_; }

 private:
  void open() {
    if (!options_.mlx_folder.empty()) check_output_folder(options_.mlx_folder);
    if (!options_.synthetic) {
      checkpoint_ = Checkpoint::open(resolve_model(options_.model));
      return;
    }
    show(0.0, "making weights");
    const auto start = Clock::now();
    synthetic_ = make_synthetic_model(*options_.synthetic);
    checkpoint_ = synthetic_.checkpoint;
    report_["synthetic"] = {{"preset", options_.synthetic->preset},
                            {"format", options_.synthetic->format},
                            {"layers", describe_model(*checkpoint_).layers.size()},
                            {"mtp", options_.synthetic->mtp},
                            {"seed", options_.seed},
                            {"bytes", checkpoint_->file_bytes()},
                            {"seconds_to_make", seconds_since(start)}};
  }

  void write() {
    const auto show_writing = [this](double fraction, const std::string& what) { show(fraction, "writing " + what); };
    const bool gguf = !options_.gguf_file.empty();
    if (gguf) {
      write_synthetic_gguf(synthetic_, options_.gguf_file, show_writing);
    } else {
      write_synthetic_mlx(synthetic_, options_.mlx_folder, tokenizer_files(synthetic_.vocabulary), show_writing);
    }
    report_["written"] = {{"path", gguf ? options_.gguf_file : options_.mlx_folder},
                          {"bytes", checkpoint_->file_bytes()}};
  }

  measure::Model load_model(std::unique_ptr<ops::Backend> backend) {
    LoadOptions load_options;
    load_options.mtp = options_.compare_drafts || (options_.synthetic && options_.synthetic->mtp);
    load_options.find_drafter = options_.compare_drafts;
    load_options.progress = [this](double fraction, const std::string& what) { show(fraction, "loading " + what); };
    return load_language_model(checkpoint_, std::move(backend), load_options);
  }

  void load() {
    measure::Samples seconds;
    for (std::int32_t repeat = 0; repeat < options_.repeats; ++repeat) {
      model_.reset();
      auto backend = make_backend(options_.backend);
      const auto start = Clock::now();
      if (!options_.synthetic) checkpoint_ = Checkpoint::open(resolve_model(options_.model));
      model_ = load_model(std::move(backend));
      seconds.add(seconds_since(start));
    }
    const double bytes = static_cast<double>(checkpoint_->file_bytes());
    report_["load"] = {{"bytes", checkpoint_->file_bytes()},
                       {"seconds", samples_json(seconds)},
                       {"gigabytes_per_second", bytes / seconds.median() / 1e9}};
  }

  /// Once, on whichever model comes first.
  void check() {
    if (report_.contains("check")) return;
    show(0.0, "checking");
    const ModelFacts& facts = model_->facts();
    report_["family"] = facts.family_title;
    report_["backend"] = facts.backend;
    report_["path"] = facts.backend_path;
    report_["device"] = backend_title(options_.backend);
    report_["arithmetic_version"] = facts.arithmetic_version;
    report_["packed_weight_bytes"] = facts.packed_weight_bytes;
    const measure::ModelCheck result = measure::check_model(*model_);
    Json entry = {{"rows", result.rows},
                  {"logits_rows", result.logits_rows},
                  {"not_finite", result.not_finite},
                  {"largest_logit", result.largest}};
    if (const auto& routing = result.routing) {
      entry["routing"] = {{"layers", routing->layers},       {"experts", routing->experts},
                          {"top_k", routing->top_k},         {"rows", routing->rows},
                          {"used_min", routing->used_min},   {"used_mean", routing->used_mean},
                          {"load_max_over_mean", routing->load_max_over_mean}};
    }
    report_["check"] = std::move(entry);
    is_sound_ = is_sound_ && result.not_finite == 0;
  }

  measure::DecodeOptions decode_options(std::int32_t streams) const {
    measure::DecodeOptions result;
    result.streams = streams;
    result.context = options_.context;
    result.reply_tokens = options_.reply_tokens;
    result.repeats = options_.repeats;
    result.temperature = options_.temperature;
    result.repeated_tokens = options_.repeated_tokens;
    result.seed = options_.seed;
    return result;
  }

  static Json decode_json(const measure::DecodeResult& result) {
    return {{"tokens_per_second", samples_json(result.tokens_per_second)},
            {"first_token_seconds", result.first_token_seconds},
            {"token_hash", hash_text(result.token_hash)},
            {"hashed_tokens", result.hashed_tokens},
            {"rounds", result.rounds},
            {"drafted", result.drafted},
            {"accepted", result.accepted},
            {"rows_max", result.rows_max}};
  }

  void decode() {
    const auto show_part = [this](const std::string& what) { show(0.0, "decode: " + what); };
    measure::DecodeOptions decode = decode_options(1);
    const measure::DecodeResult serial = measure::measure_decode(model_, decode, show_part);
    Json stream = decode_json(serial);
    if (options_.compare_drafts) {
      decode.drafts = true;
      const measure::DecodeResult drafted = measure::measure_decode(model_, decode, show_part);
      stream["with_drafts"] = decode_json(drafted);
      stream["drafted_over_serial"] = drafted.tokens_per_second.median() / serial.tokens_per_second.median();
      if (drafted.token_hash != serial.token_hash) {
        progress_.clear();
        std::fputs("tensorfold: a reply with drafts has other tokens than the one without\n", stderr);
        is_sound_ = false;
      }
    }
    show(0.0, "decode: windows");
    std::vector<std::int32_t> widths = options_.rows;  // wider ones are prompts: `kernels` times them
    std::erase_if(widths, [](std::int32_t rows) { return rows > limits::kWideWindowRowsMax; });
    const auto windows =
        measure::measure_windows(*model_, widths, options_.context, options_.accepted, options_.repeats);
    Json window_rows = Json::array();
    for (const measure::WindowResult& window : windows) {
      window_rows.push_back({{"rows", window.rows},
                             {"pass_seconds", samples_json(window.pass_seconds)},
                             {"of_first", window.pass_seconds.median() / windows.front().pass_seconds.median()}});
    }
    report_["decode"] = {{"context", options_.context},
                         {"stream", std::move(stream)},
                         {"accepted", options_.accepted},
                         {"windows", std::move(window_rows)}};
  }

  void prefill() {
    Json rows = Json::array();
    for (const std::int32_t tokens : options_.prompt_tokens) {
      show(0.0, fmt::format("prefill: {} tokens", tokens));
      const auto result = measure::measure_prefill(model_, tokens, options_.repeats, options_.seed);
      rows.push_back({{"prompt_tokens", tokens},
                      {"tokens_per_second", samples_json(result.tokens_per_second)},
                      {"passes", result.slices},
                      {"token_hash", hash_text(result.token_hash)}});
    }
    report_["prefill"] = std::move(rows);
  }

  void concurrency() {
    Json rows = Json::array();
    for (const std::int32_t streams : options_.streams) {
      measure::DecodeOptions decode = decode_options(streams);
      decode.compared_streams = std::min(options_.compare_streams_max, streams);
      const auto result = measure::measure_decode(
          model_, decode, [this](const std::string& what) { show(0.0, "concurrency: " + what); });
      Json row = decode_json(result);
      row["streams"] = streams;
      row["compared_streams"] = result.compared_streams;
      row["differing_streams"] = result.differing_streams;
      rows.push_back(std::move(row));
      is_sound_ = is_sound_ && result.differing_streams == 0;
    }
    report_["concurrency"] = {{"context", options_.context}, {"rows", std::move(rows)}};
  }

  Json operation_json(const std::string& name, std::int64_t calls, double bytes, double seconds, double in_place_seconds) const {
    Json entry = {
        {"name", name}, {"calls", calls}, {"bytes", bytes}, {"seconds", seconds}, {"in_place_seconds", in_place_seconds}};
    if (peak_ > 0.0) entry["floor_seconds"] = bytes / peak_;
    return entry;
  }

  Json kernels_of(measure::SelectiveBackend& backend, const measure::PassShape& shape) {
    show(0.0, fmt::format("kernels: {} lanes of {} rows", shape.lanes, shape.rows));
    const auto times = measure::measure_operations(*model_, backend, shape, options_.repeats);
    Json operations = Json::array();
    std::int64_t calls = 0;
    double bytes = 0.0, seconds = 0.0, in_place_seconds = 0.0;
    for (const measure::OperationTime& each : times.operations) {
      operations.push_back(operation_json(each.name, each.calls, each.bytes, each.seconds.median(), each.in_place_seconds.median()));
      operations.back()["samples"] = each.seconds.values();
      calls += each.calls;
      bytes += each.bytes;
      seconds += each.seconds.median();
      in_place_seconds += each.in_place_seconds.median();
    }
    return {{"lanes", shape.lanes},
            {"rows", shape.rows},
            {"commits", shape.commits},
            {"context", shape.context},
            {"pass_seconds", samples_json(times.pass_seconds)},
            {"empty_seconds", samples_json(times.empty_seconds)},
            {"operations", std::move(operations)},
            {"sum", operation_json("all operations", calls, bytes, seconds, in_place_seconds)}};
  }

  void kernels() {
    model_.reset();  // two copies of a large model wouldn't fit
    auto owned = std::make_unique<measure::SelectiveBackend>(make_backend(options_.backend));
    measure::SelectiveBackend& backend = *owned;
    model_ = load_model(std::move(owned));
    check();
    peak_ = options_.peak_bytes_per_second;
    if (peak_ == 0.0 && backend.info().host_memory) peak_ = measure::read_bandwidth(backend.info().threads);
    Json passes = Json::array();
    for (const std::int32_t rows : options_.rows) {
      measure::PassShape shape;
      shape.rows = rows;
      shape.context = options_.context;
      shape.commits = rows > kWindowRowsMax;
      shape.accepted = options_.accepted;
      passes.push_back(kernels_of(backend, shape));
    }
    for (const std::int32_t lanes : options_.kernel_lanes) {
      measure::PassShape shape;
      shape.lanes = lanes;
      shape.context = options_.context;
      passes.push_back(kernels_of(backend, shape));
    }
    Json entry = {{"passes", std::move(passes)}};
    if (peak_ > 0.0) entry["peak_bytes_per_second"] = peak_;
    report_["kernels"] = std::move(entry);
  }

  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  void show(double fraction, const std::string& what) { progress_.show(fraction, what); }

  const BenchOptions& options_;
  ProgressLine progress_;
  SyntheticModel synthetic_;
  std::shared_ptr<const Checkpoint> checkpoint_;
  measure::Model model_;
  double peak_ = 0.0;  // bytes a second; 0: unknown
  bool is_sound_ = true;
  Json report_;
};

}  // namespace

int run_bench(const std::vector<std::string>& words) {
  const Arguments arguments = parse_arguments(kBench, words);
  if (arguments.help()) {
    std::fputs(help_text(kBench).c_str(), stdout);
    return 0;
  }
  const BenchOptions options = bench_options(arguments);
  log_initialise("warn");  // an engine's start is no news where many start
  if (!options.output.empty()) write_report(options.output, "");  // so that hours of measuring are not lost to a wrong path
  Bench bench(options, fmt::format("tensorfold bench {}", fmt::join(words, " ")));
  const Json report = bench.run();
  const std::string json = report.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  if (!options.output.empty()) write_report(options.output, json);
  if (options.json) {
    std::fputs(json.c_str(), stdout);
  } else {
    std::fputs(without_controls(bench_report_text(report)).c_str(), stdout);
  }
  return bench.is_sound() ? 0 : 1;
}

}  // namespace tensorfold::cli
