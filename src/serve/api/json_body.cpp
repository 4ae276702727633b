// A bounded SAX builder over nlohmann::json; see json_body.h.
#include "serve/api/json_body.h"

#include <string>
#include <vector>

#include "base/limits.h"
#include "serve/api_error.h"

namespace tensorfold {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kShownFieldBytes = 64;

class BoundedBuilder : public nlohmann::json_sax<Json> {
 public:
  BoundedBuilder(Json& root, std::string_view name) : root_(root), name_(name) {}

  bool null() override { return add(Json(nullptr)); }
  bool boolean(bool value) override { return add(Json(value)); }
  bool number_integer(number_integer_t value) override { return add(Json(value)); }
  bool number_unsigned(number_unsigned_t value) override { return add(Json(value)); }
  bool number_float(number_float_t value, const string_t& text) override {
    // A whole number beyond 64 bits arrives here: a seed may have any size, so its digits are kept. Only there: a field
    // that wants a text must not take a number for one.
    const bool whole = text.find_first_not_of("-0123456789") == string_t::npos;
    return add(whole && in_seed_ ? Json(text) : Json(value));
  }
  bool string(string_t& value) override { return add(Json(std::move(value))); }
  bool binary(binary_t&) override { return refuse("binary values are not JSON"); }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& value) override {
    Json& object = *stack_.back();
    if (object.size() >= limits::kJsonObjectKeysMax) {
      if (stack_.size() == 1) field_.clear();
      return refuse(fmt::format("an object has more than {} keys", limits::kJsonObjectKeysMax));
    }
    if (stack_.size() == 1) field_ = value.substr(0, kShownFieldBytes);
    member_ = &object[value];  // a repeated key: the last value wins
    in_seed_ = stack_.size() == 1 && value == "seed";
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return refuse(fmt::format("{} is not valid JSON (near byte {})", name_, position));
  }

  const std::string& problem() const { return problem_; }
  /// A refusal that names the top-level field in which it happened.
  ApiError error() const {
    if (field_.empty()) return ApiError(400, "invalid_request_error", problem_);
    return field_error(field_, problem_);
  }

 private:
  Json* place(Json&& value) {
    if (stack_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (stack_.back()->is_array()) {
      stack_.back()->push_back(std::move(value));
      return &stack_.back()->back();
    }
    *member_ = std::move(value);
    return member_;
  }
  bool add(Json&& value) {
    place(std::move(value));
    leave_field();
    return true;
  }
  /// Whatever is wrong after a top-level field's value isn't that field's fault.
  void leave_field() {
    if (stack_.size() == 1) field_.clear();
  }
  bool open(Json&& container) {
    if (stack_.size() >= static_cast<std::size_t>(limits::kJsonDepthMax)) {
      return refuse(fmt::format("{} is nested deeper than {} levels", name_, limits::kJsonDepthMax));
    }
    stack_.push_back(place(std::move(container)));
    in_seed_ = false;
    return true;
  }
  bool close() {
    stack_.pop_back();
    leave_field();
    return true;
  }
  bool refuse(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
    return false;
  }

  Json& root_;
  std::string_view name_;
  // Pointers stay valid: a container grows only while it is the innermost one.
  std::vector<Json*> stack_;
  Json* member_ = nullptr;
  bool in_seed_ = false;  // the next value is the top level's "seed"
  std::string problem_;
  std::string field_;  // the top level's key whose value is being read
};

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

}  // namespace

Json parse_json_text(std::string_view text, std::string_view name) {
  Json root;
  BoundedBuilder builder(root, name);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    throw ApiError(400, "invalid_request_error", builder.problem());
  }
  return root;
}

Json parse_json_body(std::string_view body) {
  if (is_blank(body)) return Json::object();
  Json root;
  BoundedBuilder builder(root, "the request body");
  if (!Json::sax_parse(body.begin(), body.end(), &builder)) throw builder.error();
  if (!root.is_object()) throw ApiError(400, "invalid_request_error", "the request body must be a JSON object");
  return root;
}

std::string dump_json(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tensorfold
