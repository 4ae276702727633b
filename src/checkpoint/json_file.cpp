#include "checkpoint/json_file.h"

#include <fstream>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "base/limits.h"

namespace tensorfold {
namespace {

using nlohmann::json;

// Walks the text once and keeps nothing but the open objects' keys.
class LimitsCheck : public nlohmann::json_sax<json> {
 public:
  LimitsCheck(const std::filesystem::path& path, RepeatedKeys repeated) : path_(path), repeated_(repeated) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    enter();
    if (repeated_ == RepeatedKeys::kRefuse) keys_.emplace_back();
    return true;
  }
  bool end_object() override {
    --depth_;
    if (repeated_ == RepeatedKeys::kRefuse) keys_.pop_back();
    return true;
  }
  bool start_array(std::size_t) override {
    enter();
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(string_t& name) override {
    if (repeated_ == RepeatedKeys::kRefuse && !keys_.back().insert(name).second) {
      fail(ErrorCode::kInvalidCheckpoint, "{}: the key {} appears twice; download the file again", path_.string(),
           in_quotes(name));
    }
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    fail(ErrorCode::kInvalidCheckpoint, "{}: not valid JSON at byte {}; download the file again", path_.string(),
         position);
  }

 private:
  void enter() {
    if (++depth_ > limits::kCheckpointJsonDepthMax) {
      fail(ErrorCode::kInvalidCheckpoint, "{}: JSON nested deeper than {} levels; this isn't a checkpoint's file",
           path_.string(), limits::kCheckpointJsonDepthMax);
    }
  }

  const std::filesystem::path& path_;
  RepeatedKeys repeated_;
  int depth_ = 0;
  std::vector<std::unordered_set<std::string>> keys_;
};

std::string read_text(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    fail(ErrorCode::kNotFound, "{}: no such file; download the checkpoint again", path.string());
  }
  const std::uint64_t bytes = std::filesystem::file_size(path, error);
  if (error || bytes > limits::kJsonFileBytesMax) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: larger than {} bytes or unreadable; this isn't a checkpoint's JSON file",
         path.string(), limits::kJsonFileBytesMax);
  }
  std::string text(bytes, '\0');
  std::ifstream stream(path, std::ios::binary);
  stream.read(text.data(), static_cast<std::streamsize>(bytes));
  if (!stream) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: can't be read to its end; check its permissions and the disk",
         path.string());
  }
  return text;
}

}  // namespace

nlohmann::json read_json_object(const std::filesystem::path& path, RepeatedKeys repeated) {
  const std::string text = read_text(path);
  LimitsCheck check(path, repeated);
  json::sax_parse(text, &check);
  json value = json::parse(text);
  if (!value.is_object()) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: the top level must be a JSON object; download the file again",
         path.string());
  }
  return value;
}

std::string in_quotes(std::string_view name) {
  constexpr std::size_t kShownMax = 200;
  std::string text = "'";
  for (const char character : name.substr(0, kShownMax)) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte < 0x20 || byte == 0x7f || byte >= 0x80) {
      text += fmt::format("\\x{:02x}", byte);
    } else {
      text += character;
    }
  }
  text += name.size() > kShownMax ? "...'" : "'";
  return text;
}

}  // namespace tensorfold
