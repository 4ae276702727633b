// See bench_report.h.
#include "cli/bench_report.h"

#include <fmt/format.h>

namespace tensorfold::cli {
namespace {

using Json = nlohmann::ordered_json;

double median(const Json& samples) {
  return samples.at("median").get<double>();
}

/// "± 1.2 %": the samples' median distance from their median.
std::string spread(const Json& samples) {
  return fmt::format("± {:.1f} %", 100.0 * samples.at("deviation").get<double>() / median(samples));
}

double number(const Json& object, const char* key) {
  return object.at(key).get<double>();
}

std::string head(const Json& report) {
  const Json& machine = report["machine"];
  std::string text = fmt::format("{}", report["model"].get<std::string>());
  if (report.contains("synthetic")) {
    const Json& synthetic = report["synthetic"];
    text += fmt::format(" (random weights, {}, {} layers{})", synthetic["format"].get<std::string>(),
                        synthetic["layers"].get<int>(), synthetic["mtp"].get<bool>() ? ", MTP head" : "");
  }
  text += fmt::format(": {}, {:.1f} MB packed, on {}\n", report["family"].get<std::string>(),
                      number(report, "packed_weight_bytes") / 1e6, report["device"].get<std::string>());
  text += fmt::format("{}, {} cores, {:.0f} GiB, of which {:.0f} MB were used at most; commit {}; medians of {} or more, ± median deviations\n",
                      machine["processor"].get<std::string>(), machine["cores"].get<int>(),
                      number(machine, "memory_bytes") / (1u << 30),
                      number(report, "peak_resident_bytes") / 1e6, report["commit"].get<std::string>(),
                      report["repeats"].get<int>());
  return text;
}

std::string check_text(const Json& check) {
  std::string text = fmt::format("\ncheck: {} rows; of {} rows' logits ", check["rows"].get<int>(),
                                 check["logits_rows"].get<int>());
  const auto bad = check["not_finite"].get<std::int64_t>();
  text += bad == 0 ? "all finite" : fmt::format("{} NOT FINITE", bad);
  text += fmt::format(", largest {:.3g}\n", number(check, "largest_logit"));
  if (!check.contains("routing")) return text;
  const Json& routing = check["routing"];
  return text + fmt::format("routing: {} of {} experts a row, {} layers: {:.0f} experts used on average, {} at least; "
                            "the busiest has {:.1f} times its share\n",
                            routing["top_k"].get<int>(), routing["experts"].get<int>(), routing["layers"].get<int>(),
                            number(routing, "used_mean"), routing["used_min"].get<int>(),
                            number(routing, "load_max_over_mean"));
}

std::string load_text(const Json& load) {
  return fmt::format("\nload: {:.2f} s {}, {:.2f} GB/s of {:.1f} MB\n", median(load["seconds"]),
                     spread(load["seconds"]), number(load, "gigabytes_per_second"), number(load, "bytes") / 1e6);
}

std::string drafts_text(const Json& row) {
  if (!row.contains("drafted_over_serial")) return "";
  return fmt::format("  with drafts {:.1f} tokens/s, {:.2f} times as fast: {} of {} drafts landed, {} rounds of up to {} rows\n",
                     median(row["with_drafts"]["tokens_per_second"]), number(row, "drafted_over_serial"),
                     row["with_drafts"]["accepted"].get<int>(), row["with_drafts"]["drafted"].get<int>(),
                     row["with_drafts"]["rounds"].get<int>(), row["with_drafts"]["rows_max"].get<int>());
}

std::string decode_text(const Json& decode) {
  const Json& stream = decode["stream"];
  std::string text = fmt::format("\ndecode, one stream after {} tokens: {:.1f} tokens/s {}, {:.3f} ms a token, tokens {}\n",
                                 decode["context"].get<int>(), median(stream["tokens_per_second"]),
                                 spread(stream["tokens_per_second"]), 1e3 / median(stream["tokens_per_second"]),
                                 stream["token_hash"].get<std::string>());
  text += drafts_text(stream);
  if (decode["windows"].empty()) return text;
  text += fmt::format("windows, {} rows of the one before landed:\n  {:>5} {:>11} {:>12}\n",
                      decode["accepted"].get<int>(), "rows", "ms a pass", fmt::format("of {} row{}", decode["windows"][0]["rows"].get<int>(),
                      decode["windows"][0]["rows"].get<int>() == 1 ? "" : "s"));
  for (const Json& window : decode["windows"]) {
    text += fmt::format("  {:>5} {:>11.3f} {:>12.3f}  {}\n", window["rows"].get<int>(),
                        1e3 * median(window["pass_seconds"]), number(window, "of_first"),
                        spread(window["pass_seconds"]));
  }
  return text;
}

std::string prefill_text(const Json& rows) {
  std::string text = fmt::format("\nprefill\n  {:>8} {:>12} {:>9} {:>8}\n", "tokens", "tokens/s", "seconds", "passes");
  for (const Json& row : rows) {
    const double rate = median(row["tokens_per_second"]);
    text += fmt::format("  {:>8} {:>12.1f} {:>9.3f} {:>8}  {}, tokens {}\n", row["prompt_tokens"].get<int>(), rate,
                        row["prompt_tokens"].get<int>() / rate, row["passes"].get<int>(),
                        spread(row["tokens_per_second"]), row["token_hash"].get<std::string>());
  }
  return text;
}

std::string concurrency_text(const Json& concurrency) {
  std::string text = fmt::format("\nconcurrency, after {} tokens each\n  {:>7} {:>12} {:>10} {:>9}  {}\n",
                                 concurrency["context"].get<int>(), "streams", "tokens/s", "of each", "ms/token",
                                 "each against itself alone");
  for (const Json& row : concurrency["rows"]) {
    const double rate = median(row["tokens_per_second"]);
    const int streams = row["streams"].get<int>(), compared = row["compared_streams"].get<int>(),
              differing = row["differing_streams"].get<int>();
    const std::string verdict = compared == 0    ? "not compared"
                                : differing == 0 ? fmt::format("{} equal", compared)
                                                 : fmt::format("{} of {} DIFFER", differing, compared);
    text += fmt::format("  {:>7} {:>12.1f} {:>10.1f} {:>9.3f}  {}  {}, tokens {}\n", streams, rate, rate / streams,
                        1e3 * streams / rate, verdict, spread(row["tokens_per_second"]),
                        row["token_hash"].get<std::string>());
  }
  return text;
}

std::string operation_line(const Json& operation, bool with_floor) {
  const double seconds = number(operation, "seconds");
  const auto calls = operation["calls"].get<std::int64_t>();
  const auto of_a_call = [&](double all) { return calls > 0 ? 1e6 * all / static_cast<double>(calls) : 0.0; };
  std::string text = fmt::format("  {:<46} {:>6} {:>10.3f} {:>10.2f} {:>10.2f} {:>11.2f} {:>9}", operation["name"].get<std::string>(),
                                 calls, 1e3 * seconds, of_a_call(seconds), of_a_call(number(operation, "in_place_seconds")),
                                 number(operation, "bytes") / 1e6,
                                 seconds > 0.0 ? fmt::format("{:.1f}", number(operation, "bytes") / seconds / 1e9) : "-");
  if (with_floor) {
    const double floor = number(operation, "floor_seconds");
    text += fmt::format(" {:>9.3f} {:>6}", 1e3 * floor,
                        seconds > 0.0 ? fmt::format("{:.0f} %", 100.0 * floor / seconds) : "-");
  }
  return text + "\n";
}

std::string kernels_text(const Json& kernels) {
  const bool with_floor = kernels.contains("peak_bytes_per_second");
  std::string text = "\nkernels: milliseconds of a pass, all layers together";
  if (with_floor) text += fmt::format("; floor at {:.1f} GB/s", number(kernels, "peak_bytes_per_second") / 1e9);
  text += "\n";
  for (const Json& pass : kernels["passes"]) {
    text += fmt::format("\n{} lane{} of {} {} row{} after {} tokens: pass {:.3f} ms {}, of it {:.3f} ms without operations\n",
                        pass["lanes"].get<int>(), pass["lanes"].get<int>() == 1 ? "" : "s", pass["rows"].get<int>(),
                        pass["commits"].get<bool>() ? "prompt" : "window", pass["rows"].get<int>() == 1 ? "" : "s",
                        pass["context"].get<int>(), 1e3 * median(pass["pass_seconds"]), spread(pass["pass_seconds"]),
                        1e3 * median(pass["empty_seconds"]));
    text += fmt::format("  {:<46} {:>6} {:>10} {:>10} {:>10} {:>11} {:>9}", "operation", "calls", "ms", "us a call", "in place", "MB",
                        "GB/s");
    text += with_floor ? fmt::format(" {:>9} {:>6}\n", "floor ms", "of it") : "\n";
    for (const Json& operation : pass["operations"]) text += operation_line(operation, with_floor);
    text += operation_line(pass["sum"], with_floor);
  }
  return text;
}

}  // namespace

Json samples_json(const measure::Samples& samples) {
  return {{"median", samples.median()}, {"deviation", samples.deviation()}, {"samples", samples.values()}};
}

std::string bench_report_text(const Json& report) {
  std::string text;
  if (report.contains("written")) {
    text += fmt::format("written: {} ({:.1f} MB)\n", report["written"]["path"].get<std::string>(),
                        number(report["written"], "bytes") / 1e6);
  }
  if (!report.contains("check")) return text;
  text += head(report) + check_text(report["check"]);
  if (report.contains("load")) text += load_text(report["load"]);
  if (report.contains("decode")) text += decode_text(report["decode"]);
  if (report.contains("prefill")) text += prefill_text(report["prefill"]);
  if (report.contains("concurrency")) text += concurrency_text(report["concurrency"]);
  if (report.contains("kernels")) text += kernels_text(report["kernels"]);
  return text;
}

}  // namespace tensorfold::cli
