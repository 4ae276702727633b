// BoundArguments.
#include "text/jinja_arguments.h"

#include <algorithm>

#include "text/jinja_runtime.h"

namespace tensorfold::jinja {

BoundArguments::BoundArguments(Runtime& runtime, std::string_view callee, const CallArguments& arguments,
                               std::initializer_list<std::string_view> names, std::size_t required)
    : runtime_(runtime), callee_(callee), names_(names), values_(names.size()) {
  if (arguments.positional.size() > names.size()) {
    runtime.error("{} takes at most {} arguments, not {}", callee, names.size(), arguments.positional.size());
  }
  std::copy(arguments.positional.begin(), arguments.positional.end(), values_.begin());
  for (const auto& [name, value] : arguments.keywords) {
    const auto position = std::find(names_.begin(), names_.end(), name);
    if (position == names_.end()) runtime.error("{} has no argument named '{}'", callee, name);
    std::optional<Value>& slot = values_[static_cast<std::size_t>(position - names_.begin())];
    if (slot) runtime.error("{} got '{}' twice", callee, name);
    slot = value;
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (!values_[i]) runtime.error("{} needs the argument '{}'", callee, names_[i]);
  }
}

const Value* BoundArguments::given(std::size_t index) const {
  return values_[index] && !values_[index]->is_none() ? &*values_[index] : nullptr;
}

const Text& BoundArguments::text(std::size_t index) const {
  if (!values_[index]->is_text()) {
    runtime_.error("{}: '{}' must be a string, not {}", callee_, names_[index], type_name(*values_[index]));
  }
  return *values_[index]->text;
}

Integer BoundArguments::integer(std::size_t index, Integer fallback) const {
  if (!values_[index]) return fallback;
  if (!values_[index]->is_integral()) {
    runtime_.error("{}: '{}' must be an integer, not {}", callee_, names_[index], type_name(*values_[index]));
  }
  return values_[index]->as_integer();
}

bool BoundArguments::truth(std::size_t index, bool fallback) const {
  return values_[index] ? is_true(*values_[index]) : fallback;
}

}  // namespace tensorfold::jinja
