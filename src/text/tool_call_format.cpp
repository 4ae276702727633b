// See tool_call_format.h.
#include "text/tool_call_format.h"

#include <algorithm>
#include <string_view>

#include "text/tool_call_reader.h"
#include "text/tool_value.h"

namespace tensorfold {
namespace {

constexpr std::string_view kThinkClose = "</think>";
constexpr std::string_view kXmlLead = "<function=";

/// Where the turn's calls can begin: behind its content, or (in templates that leave the content of a call out) behind
/// the turn's header.
std::size_t answer_begin(std::string_view text, const std::string& plain) {
  const std::string_view content = ToolCallProbes::kContent;
  const std::size_t found = text.find(content);
  if (found != std::string_view::npos) return found + content.size();
  const std::size_t header = plain.find(content);
  if (header == std::string::npos || !text.starts_with(std::string_view(plain).substr(0, header))) return text.size();
  return header;
}

/// One call at the front of `text`, which begins with its name: its parts and where it ends. False: another form.
bool read_call(std::string_view text, std::string_view name, ToolCallFormat& format, std::size_t& end) {
  text.remove_prefix(name.size());
  const std::string key = ToolCallProbes::kKey, value = ToolCallProbes::kValue;
  if (format.lead.ends_with(kXmlLead)) {
    const std::string rest = ">\n<parameter=" + key + ">\n" + value + "\n</parameter>\n</function>";
    if (!text.starts_with(rest)) return false;
    format.style = ToolCallFormat::Style::kXml;
    end = name.size() + rest.size();
    return true;
  }
  const std::size_t bracket = text.find('{');
  if (bracket == std::string_view::npos || !text.starts_with('"')) return false;
  const std::string_view between = text.substr(0, bracket);
  if (between.find("\"arguments\"") == std::string_view::npos &&
      between.find("\"parameters\"") == std::string_view::npos) {
    return false;
  }
  JsonNesting nesting;
  std::size_t stop = bracket;
  do {
    nesting.step(text[stop++]);
  } while (nesting.depth() > 0 && stop < text.size());
  const auto arguments = parse_bounded_json(text.substr(bracket, stop - bracket));
  if (!arguments || *arguments != nlohmann::ordered_json{{key, value}}) return false;
  format.style = ToolCallFormat::Style::kJson;
  format.after_name = between;
  end = name.size() + stop;
  return true;
}

std::string without_blanks_behind(std::string_view text) {
  return std::string(text.substr(0, text.find_last_not_of(" \t\r\n") + 1));
}

/// What stands behind the only call of a turn, up to the template's own end of the turn.
std::string single_tail(std::string_view rest) {
  std::size_t end = rest.size();
  for (const std::string_view turn_end : {"<|", "</s>", "<end_of_turn>", "<turn|>", "[/"}) {
    end = std::min(end, rest.find(turn_end));
  }
  return without_blanks_behind(rest.substr(0, end));
}

/// True when the two calls of `text`, the first ending at `end`, are written alike, blanks between them.
bool read_separator(std::string_view text, std::size_t end, ToolCallFormat& format) {
  const std::size_t second = text.find(ToolCallProbes::kSecond, end);
  if (second == std::string_view::npos) return false;
  std::string_view between = text.substr(end, second - end);
  if (!between.ends_with(format.lead)) return false;
  between.remove_suffix(format.lead.size());
  format.tail = without_blanks_behind(between);
  format.separator = between.substr(format.tail.size());
  format.several = true;
  return true;
}

}  // namespace

ToolCallFormat detect_call_format(const ToolCallProbes& probes) {
  ToolCallFormat format;
  const std::optional<std::string>& rendered = probes.two ? probes.two : probes.one;
  if (!probes.plain || !rendered) return format;
  const std::string_view text = *rendered;
  const std::size_t begin = answer_begin(text, *probes.plain);
  const std::size_t name = text.find(ToolCallProbes::kFirst, begin);
  if (name == std::string_view::npos) return format;
  std::string_view lead = text.substr(begin, name - begin);
  const std::size_t thought = lead.rfind(kThinkClose);
  if (thought != std::string_view::npos) lead.remove_prefix(thought + kThinkClose.size());
  lead.remove_prefix(skip_blanks(lead, 0));
  format.lead = lead;
  std::size_t end = 0;
  if (lead.empty() || !read_call(text.substr(name), ToolCallProbes::kFirst, format, end)) return {};
  if (probes.two && read_separator(text, name + end, format)) return format;
  const std::string_view single = probes.one ? std::string_view(*probes.one) : std::string_view();
  const std::size_t only = single.find(ToolCallProbes::kFirst, answer_begin(single, *probes.plain));
  if (only == std::string_view::npos || !read_call(single.substr(only), ToolCallProbes::kFirst, format, end)) return {};
  format.tail = single_tail(single.substr(only + end));
  return format;
}

}  // namespace tensorfold
