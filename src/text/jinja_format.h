// Python's two ways to format into a string: "%s" % values, and "{}".format(values) with format specifications.
#pragma once

#include "text/jinja_value.h"

namespace tensorfold::jinja {

Value format_percent(Runtime& runtime, const Text& format, const Value& values);
Value format_braces(Runtime& runtime, const Text& format, const CallArguments& arguments);

}  // namespace tensorfold::jinja
