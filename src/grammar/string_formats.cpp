// See string_formats.h.
#include "grammar/string_formats.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace tensorfold {
namespace {

// Days that exist, leap years included; the year 0000 doesn't.
#define TF_YEAR "(?:000[1-9]|00[1-9]\\d|0[1-9]\\d\\d|[1-9]\\d{3})"
#define TF_LEAP_YEAR "(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
#define TF_MONTH_DAY \
  "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))"
#define TF_DATE "(?:" TF_YEAR "-" TF_MONTH_DAY "|" TF_LEAP_YEAR "-02-29)"
#define TF_TIME "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,6})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define TF_DURATION_TIME "T(?:\\d{1,4}H(?:\\d{1,4}M(?:\\d{1,4}S)?)?|\\d{1,4}M(?:\\d{1,4}S)?|\\d{1,4}S)"
#define TF_DURATION_DATE "(?:\\d{1,4}Y(?:\\d{1,4}M(?:\\d{1,4}D)?)?|\\d{1,4}M(?:\\d{1,4}D)?|\\d{1,4}D)"
#define TF_LABEL "[a-zA-Z0-9]{1,16}(?:-[a-zA-Z0-9]{1,16}){0,2}"
#define TF_BYTE "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define TF_GROUP "[0-9a-fA-F]{1,4}"
#define TF_URI_TEXT "[a-zA-Z0-9._~!$&'()*+,;=:@/-]*(?:%[0-9a-fA-F]{2}[a-zA-Z0-9._~!$&'()*+,;=:@/-]*)*"

struct Format {
  std::string_view name;
  std::string_view pattern;
};

constexpr Format kFormats[] = {
    {"date", "^" TF_DATE "$"},
    {"time", "^" TF_TIME "$"},
    {"date-time", "^" TF_DATE "T" TF_TIME "$"},
    {"duration", "^P(?:\\d{1,4}W|" TF_DURATION_DATE "(?:" TF_DURATION_TIME ")?|" TF_DURATION_TIME ")$"},
    {"email", "^[a-zA-Z0-9_+-]{1,32}(?:\\.[a-zA-Z0-9_+-]{1,16})?@" TF_LABEL "(?:\\." TF_LABEL ")?\\.[a-zA-Z]{2,24}$"},
    {"hostname", "^" TF_LABEL "(?:\\." TF_LABEL "){0,2}$"},
    {"ipv4", "^(?:" TF_BYTE "\\.){3}" TF_BYTE "$"},
    {"ipv6", "^(?:(?:" TF_GROUP ":){7}" TF_GROUP "|(?:" TF_GROUP ":){1,7}:|(?:" TF_GROUP ":){1,6}:" TF_GROUP
             "|(?:" TF_GROUP ":){1,5}(?::" TF_GROUP "){1,2}|(?:" TF_GROUP ":){1,4}(?::" TF_GROUP "){1,3}|(?:" TF_GROUP
             ":){1,3}(?::" TF_GROUP "){1,4}|(?:" TF_GROUP ":){1,2}(?::" TF_GROUP "){1,5}|" TF_GROUP ":(?::" TF_GROUP
             "){1,6}|:(?::" TF_GROUP "){1,7}|::)$"},
    {"uri", "^[a-zA-Z][a-zA-Z0-9+.-]{1,15}://" TF_LABEL "(?:\\." TF_LABEL "){0,3}(?::\\d{1,4})?(?:/" TF_URI_TEXT
            ")?(?:\\?" TF_URI_TEXT ")?(?:#" TF_URI_TEXT ")?$"},
    {"uuid", "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"},
};

}  // namespace

std::string_view format_pattern(std::string_view name) {
  const auto found = std::find_if(std::begin(kFormats), std::end(kFormats),
                                  [name](const Format& format) { return format.name == name; });
  return found == std::end(kFormats) ? std::string_view() : found->pattern;
}

std::string format_names() {
  std::string names;
  for (const Format& format : kFormats) names += fmt::format("{}{}", names.empty() ? "" : ", ", format.name);
  return names;
}

}  // namespace tensorfold
