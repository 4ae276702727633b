// The one flag table: parsing, help, refusal and `capabilities` all read it, so that none of them can list a flag that
// another doesn't know (api.md 1.2, 1.3). Flags that api.md knows and this build doesn't are in it too, marked, and are
// refused by name.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tensorfold::cli {

/// What was typed can't be understood: usage and exit status 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class FlagKind { kSwitch, kText, kInteger, kNumber, kChoice };

enum Command : unsigned { kServe = 1u, kChat = 2u, kInfo = 4u, kVerify = 8u, kConvert = 16u, kBench = 32u };

struct Flag {
  std::string_view name;  // "--host"
  FlagKind kind = FlagKind::kText;
  unsigned commands = kServe;
  std::string_view value_name = "";
  std::string_view help = "";
  std::vector<std::string_view> choices = {};
  double minimum = 0;
  double maximum = 0;
  bool repeatable = false;
};

const std::vector<Flag>& flag_table();
/// Names of api.md section 2 (and historical ones) that this build doesn't serve.
const std::vector<std::string_view>& unbuilt_flags();

class Arguments {
 public:
  const std::string& model() const { return model_; }
  /// The second word of `convert IN OUT`; empty elsewhere.
  const std::string& output() const { return output_; }
  /// All words that aren't flags: of `bench`, MODEL and what to measure.
  const std::vector<std::string>& words() const { return words_; }
  bool help() const { return help_; }
  bool has(std::string_view name) const { return values_.find(name) != values_.end(); }
  std::optional<std::string> text(std::string_view name) const;
  std::optional<std::int64_t> integer(std::string_view name) const;
  std::optional<double> number(std::string_view name) const;
  std::vector<std::string> list(std::string_view name) const;

 private:
  friend Arguments parse_arguments(Command command, const std::vector<std::string>& words);
  std::string model_, output_;
  std::vector<std::string> words_;
  bool help_ = false;
  std::map<std::string, std::vector<std::string>, std::less<>> values_;
};

/// Parses what follows the command's name. With --help anywhere nothing else is checked. Throws UsageError.
Arguments parse_arguments(Command command, const std::vector<std::string>& words);

/// "usage: tensorfold serve MODEL [flags]" and one line for each flag.
std::string usage_line(Command command);
std::string help_text(Command command);

/// Integers modulo 2^64, as a request's seed is read.
std::uint64_t seed_from(const std::string& text);

}  // namespace tensorfold::cli
