// The report of `tensorfold bench` for people. It is made from the JSON report, so that the two can't say different
// things.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "engine/measure/samples.h"

namespace tensorfold::cli {

/// {"median": ..., "deviation": ..., "samples": [...]}
nlohmann::ordered_json samples_json(const measure::Samples& samples);

std::string bench_report_text(const nlohmann::ordered_json& report);

}  // namespace tensorfold::cli
