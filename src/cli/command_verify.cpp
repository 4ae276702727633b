// `tensorfold verify MODEL`: the fold test as a user's command. Draws random schedules over the served engine and
// compares tokens and committed rows' logits, bit for bit, with a plain one-row-at-a-time run of the same model. What
// is compared and how is engine/verify's; here are the flags, the progress and the two ways of printing a report.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <future>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/temporary_folder.h"
#include "checkpoint/checkpoint.h"
#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/model_options.h"
#include "cli/progress.h"
#include "engine/borrowed_model.h"
#include "engine/verify/fold.h"
#include "hub/resolve.h"
#include "model/load.h"
#include "serve/load_served_model.h"

namespace tensorfold::cli {
namespace {

constexpr std::int64_t kSchedulesDefault = 20;
constexpr std::int32_t kSchedulesPerPlainRun = 2;
constexpr std::int64_t kCachedUnitsMax = 512;  // pages and states of a schedule's prompt cache
constexpr std::uint64_t kSmallModelBytes = 64ull << 20;

std::shared_ptr<LanguageModel> load(const ServedModelOptions& options, ProgressLine& progress) {
  LoadOptions load_options;
  load_options.find_drafter = true;
  load_options.progress = [&progress](double fraction, const std::string& what) { progress.show(fraction, what); };
  const auto checkpoint = Checkpoint::open(resolve_model(options.model));
  return load_language_model(checkpoint, make_backend(options), load_options);
}

std::int32_t schedules_from(const Arguments& arguments) {
  return static_cast<std::int32_t>(arguments.integer("--schedules").value_or(kSchedulesDefault));
}

/// Schedules as wide as the model is small: a plain run feeds one row a pass.
fold::Options fold_options(const Arguments& arguments, const ModelFacts& facts, const std::filesystem::path& folder) {
  fold::Options options;
  options.schedules = schedules_from(arguments);
  options.seed = seed_from(arguments.text("--seed").value_or("1"));
  options.schedules_per_plain_run = kSchedulesPerPlainRun;
  // A GPU draws tokens itself where nobody asks for the logits.
  options.hidden_schedules = facts.backend == "cuda" ? 0.25 : 0.0;
  options.hidden_streams = facts.backend == "cuda" ? 0.2 : 0.1;
  options.reply_tokens_max = 64;
  if (facts.packed_weight_bytes > kSmallModelBytes) {
    options.streams_max = 6;
    options.prompt_tokens_max = 80;
    options.reply_tokens_max = 16;
  }
  options.waves = 3;
  options.learn_folder = (folder / "learned").string();
  options.recall_folder = (folder / "recall").string();
  for (const CacheGroup& group : facts.groups) {
    options.prompt_cache_bytes_max += kCachedUnitsMax * static_cast<std::int64_t>(group.page_bytes + group.slot_bytes);
  }
  options.prompt_tokens_max = std::min(options.prompt_tokens_max, facts.context_max / 2);
  options.reply_tokens_max = std::min(options.reply_tokens_max, facts.context_max / 4);
  return options;
}

/// The schedules of one job. One copy of the weights serves the plain run and then the engine of each.
fold::Report run_job(const std::shared_ptr<LanguageModel>& model, const fold::Options& options) {
  return fold::run([&](std::int32_t) { return std::make_unique<BorrowedModel>(model); }, options);
}

/// Throws UsageError.
std::int32_t jobs_from(const Arguments& arguments) {
  const auto jobs = static_cast<std::int32_t>(arguments.integer("--jobs").value_or(1));
  if (jobs > 1 && runs_on_gpu(backend_choice(arguments))) {
    throw UsageError(
        "argument --jobs: only on the CPU. Passes that one program captures side by side on a GPU disturb each other");
  }
  return std::min(jobs, (schedules_from(arguments) + kSchedulesPerPlainRun - 1) / kSchedulesPerPlainRun);
}

/// All schedules, shared out among the jobs; the first job has `model`. Rethrows what a job threw.
fold::Report run_jobs(const Arguments& arguments, std::shared_ptr<LanguageModel> model,
                      const std::filesystem::path& folder, ProgressLine& progress) {
  const std::int32_t jobs = jobs_from(arguments);
  std::vector<std::shared_ptr<LanguageModel>> models{std::move(model)};
  while (models.size() < static_cast<std::size_t>(jobs)) models.push_back(load(model_options(arguments), progress));
  std::mutex mutex;
  std::int32_t done = 0;
  std::vector<std::future<fold::Report>> parts;
  for (std::int32_t job = 0; job < jobs; ++job) {
    const auto& own = models[static_cast<std::size_t>(job)];
    const std::filesystem::path own_folder = folder / std::to_string(job);
    std::filesystem::create_directories(own_folder);
    fold::Options options = fold_options(arguments, own->facts(), own_folder);
    options.first = job;
    options.step = jobs;
    options.progress = [&mutex, &done, &progress, all = options.schedules] {
      const std::lock_guard lock(mutex);
      progress.show(static_cast<double>(++done) / all, fmt::format("schedule {} of {}", done, all));
    };
    parts.push_back(std::async(std::launch::async, [own, options] { return run_job(own, options); }));
  }
  fold::Report report;
  for (auto& part : parts) fold::add(report, part.get());
  return report;
}

nlohmann::ordered_json report_json(const std::string& model, const ModelFacts& facts, std::uint64_t seed,
                                   const fold::Report& report) {
  nlohmann::ordered_json json = {{"model", model},
                                 {"family", facts.family},
                                 {"backend", facts.backend},
                                 {"path", facts.backend_path},
                                 {"arithmetic_version", facts.arithmetic_version},
                                 {"seed", seed},
                                 {"schedules", report.schedules},
                                 {"streams", report.streams},
                                 {"rows", report.rows_compared},
                                 {"tokens", report.tokens_compared},
                                 {"differing_bits", report.differing_bits},
                                 {"failures", report.failures},
                                 {"plain_run_s", report.plain_run_s},
                                 {"engine_s", report.engine_s},
                                 {"mechanisms", fold::mechanisms(report)}};
  if (report.failures > 0) json["first_failure"] = report.first_failure;
  return json;
}

std::string report_text(const ModelFacts& facts, const fold::Report& report) {
  std::string text = fmt::format("{} on {} ({}), arithmetic version {}\n", facts.family_title, facts.backend,
                                 facts.backend_path, facts.arithmetic_version);
  text += fmt::format("schedules: {}\nstreams: {}\nrows compared: {}\ntokens compared: {}\ndiffering bits: {}\n",
                      report.schedules, report.streams, report.rows_compared, report.tokens_compared,
                      report.differing_bits);
  text += "mechanisms:\n";
  std::vector<std::string> unexercised;
  for (const auto& [name, count] : fold::mechanisms(report)) {
    text += fmt::format("  {:<28} {:>10}\n", name, count);
    if (count == 0 && !name.starts_with("windows_landed_")) unexercised.push_back(name);  // those are one histogram
  }
  if (!unexercised.empty()) {
    text += fmt::format("not exercised: {} (more --schedules reach more; some need a model with drafters)\n",
                        fmt::join(unexercised, ", "));
  }
  if (report.failures > 0) {
    text += fmt::format("failures: {}\nfirst failure: {}\n", report.failures, report.first_failure);
    text +=
        "Please report this with the model and the line above: the same seed, --schedules and --jobs show it again.\n";
  } else if (report.passed()) {
    text += "Every row and token that was compared equals the one-row-at-a-time run's.\n";
  } else {
    text += "Nothing was compared.\n";
  }
  return text;
}

}  // namespace

int run_verify(const std::vector<std::string>& words) {
  const Arguments arguments = parse_arguments(kVerify, words);
  if (arguments.help()) {
    std::fputs(help_text(kVerify).c_str(), stdout);
    return 0;
  }
  jobs_from(arguments);     // before anything is loaded
  log_initialise("error");  // what schedules do to an engine on purpose is no news
  ProgressLine progress;
  const std::shared_ptr<LanguageModel> model = load(model_options(arguments), progress);
  const ModelFacts facts = model->facts();
  const TemporaryFolder folder;
  const fold::Report report = run_jobs(arguments, model, folder.path(), progress);
  progress.clear();
  if (arguments.has("--json")) {
    const std::uint64_t seed = seed_from(arguments.text("--seed").value_or("1"));
    std::printf("%s\n", report_json(arguments.model(), facts, seed, report).dump().c_str());
  } else {
    std::fputs(report_text(facts, report).c_str(), stdout);
  }
  return report.passed() ? 0 : 1;
}

}  // namespace tensorfold::cli
