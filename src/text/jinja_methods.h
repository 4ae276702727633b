// Attributes and methods of values: what `a.b`, `a['b']` and `a.b(...)` mean for strings, lists, dictionaries, loops
// and namespaces.
#pragma once

#include <string>

#include "text/jinja_value.h"

namespace tensorfold::jinja {

/// a.name: a method or attribute first, an item second; undefined when there is neither.
Value get_attribute(Runtime& runtime, const Value& object, const std::string& name);
/// a[index]: an item first, an attribute second.
Value get_item(Runtime& runtime, const Value& object, const Value& index);
Value call_method(Runtime& runtime, const MethodObject& method, const CallArguments& arguments);

using TextMethod = Value (*)(Runtime&, const Text&, const CallArguments&);
/// Null when Python's strings have no such method here.
TextMethod find_text_method(const std::string& name);

// String operations that filters share.
Value strip_text(Runtime& runtime, const Text& text, const Text* characters, bool left, bool right);
Value upper_text(Runtime& runtime, const Text& text);
Value lower_text(Runtime& runtime, const Text& text);
Value capitalize_text(Runtime& runtime, const Text& text);
Value replace_text(Runtime& runtime, const Text& text, const Text& before, const Text& after, Integer count);
std::vector<Value> split_lines(Runtime& runtime, const Text& text, bool keep_ends);

}  // namespace tensorfold::jinja
