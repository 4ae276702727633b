// `tensorfold convert IN OUT`: a full-precision checkpoint to MLX affine weights, with the error that each matrix takes
// on.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/progress.h"
#include "cli/terminal_text.h"
#include "convert/convert.h"
#include "hub/resolve.h"
#include "serve/gguf_vocabulary.h"
#include "text/tokenizer.h"

namespace tensorfold::cli {
namespace {

constexpr double kMib = 1024.0 * 1024.0;

std::string report_text(const ConversionPlan& plan, const ConversionReport& report, const std::string& out) {
  std::size_t width = 6;
  for (const MatrixError& matrix : report.matrices) width = std::max(width, matrix.path.size());
  std::string text = fmt::format("{:<{}}  {:<16} {:>12} {:>12}\n", "matrix", width, "format", "error (rms)", "largest");
  double squares = 0.0;
  std::int64_t elements = 0;
  for (const MatrixError& matrix : report.matrices) {
    text += fmt::format("{:<{}}  {:<16} {:>11.3f}% {:>12.3e}\n", matrix.path, width, matrix.format,
                        100.0 * matrix.relative_rms, matrix.largest);
    squares += matrix.relative_rms * matrix.relative_rms * static_cast<double>(matrix.elements);
    elements += matrix.elements;
  }
  if (elements > 0) {
    text +=
        fmt::format("{} matrices of {} weights, error {:.3f}% by weight (root mean square over that of the source)\n",
                    report.matrices.size(), elements, 100.0 * std::sqrt(squares / static_cast<double>(elements)));
  }
  const bool quantised = std::any_of(report.matrices.begin(), report.matrices.end(),
                                     [](const MatrixError& matrix) { return matrix.quantised; });
  if (!quantised) text += "warning: no matrix was quantised; the rules or the group size leave all as they are\n";
  text += fmt::format("{} vectors and tables kept as they are or nearly so\n", report.vectors);
  if (!plan.skipped.empty())
    text += fmt::format("{} tensors left out (vision, copies of a tied head)\n", plan.skipped.size());
  if (report.copied_files.empty()) {
    text += "no tokenizer beside the source: add tokenizer.json before serving\n";
  } else {
    text += fmt::format("with {}\n", fmt::join(report.copied_files, ", "));
  }
  text += fmt::format("{}: {:.1f} MiB (from {:.1f} MiB)\n", out, static_cast<double>(report.bytes_after) / kMib,
                      static_cast<double>(report.bytes_before) / kMib);
  return text;
}

/// A GGUF file's tokenizer, template and end ids as the files that a directory has. A score-based vocabulary has no
/// such form yet: the report then says that there is no tokenizer.
std::map<std::string, std::string> gguf_companions(const Checkpoint& checkpoint) {
  const GgufVocabulary vocabulary = gguf_vocabulary(checkpoint);
  if (vocabulary.model != "gpt2") return {};
  const auto text_of = [&](std::int32_t id) {
    return id < 0 ? nlohmann::json() : nlohmann::json(vocabulary.tokens.at(static_cast<std::size_t>(id)));
  };
  std::map<std::string, std::string> files;
  files["tokenizer.json"] = gguf_tokenizer_json(vocabulary);  // checks the ids
  nlohmann::json settings{{"tokenizer_class", "PreTrainedTokenizerFast"},
                          {"bos_token", text_of(vocabulary.bos_token)},
                          {"eos_token", text_of(vocabulary.eos_token)},
                          {"pad_token", text_of(vocabulary.padding_token)},
                          {"add_bos_token", vocabulary.add_bos_token.value_or(false)},
                          {"clean_up_tokenization_spaces", false}};
  const std::string chat_template = gguf_text(checkpoint.config(), "tokenizer.chat_template", "");
  if (!chat_template.empty()) settings["chat_template"] = chat_template;
  files["tokenizer_config.json"] = settings.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (vocabulary.eos_token >= 0) {
    files["generation_config.json"] = nlohmann::json{{"eos_token_id", vocabulary.eos_token}}.dump(2) + "\n";
  }
  return files;
}

QuantisationRules rules_from(const AffineSetting& setting, const std::string& mixed) {
  try {
    return QuantisationRules(setting, mixed);
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

}  // namespace

int run_convert(const std::vector<std::string>& words) {
  const Arguments arguments = parse_arguments(kConvert, words);
  if (arguments.help()) {
    std::fputs(help_text(kConvert).c_str(), stdout);
    return 0;
  }
  AffineSetting setting;
  setting.bits = static_cast<int>(arguments.integer("--bits").value_or(4));
  setting.group_size = static_cast<int>(arguments.integer("--group").value_or(64));
  QuantisationRules rules = rules_from(setting, arguments.text("--mixed").value_or(""));
  std::filesystem::path out = arguments.output();
  if (!out.has_filename()) out = out.parent_path();  // a slash at the end
  check_output_folder(out);
  ConversionPlan plan = plan_conversion(Checkpoint::open(resolve_model(arguments.model())), rules);
  if (plan.checkpoint->container() == Container::kGguf) plan.files = gguf_companions(*plan.checkpoint);
  ConversionReport report;
  {
    ProgressLine progress;
    report = convert(plan, out, [&](double fraction, const std::string& what) { progress.show(fraction, what); });
  }
  std::fputs(without_controls(report_text(plan, report, out.string())).c_str(), stdout);
  return 0;
}

}  // namespace tensorfold::cli
