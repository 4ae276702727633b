// Small templates against jinja2: each prints the same bytes or fails where jinja2 fails.
#include <gtest/gtest.h>

#include "template_golden.h"

namespace tensorfold {
namespace {

TEST(TemplateExpressions, EqualJinja2) {
  setenv("TZ", "UTC", 1);
  const nlohmann::ordered_json golden = read_template_golden("expressions.json");
  const std::int64_t now = golden["now"];
  ASSERT_GT(golden["cases"].size(), 900u);
  for (const auto& item : golden["cases"]) {
    const std::string source = item[0];
    const RenderedText rendered = render_source(source, golden["variables"], now);
    if (item[1].is_null()) {
      EXPECT_TRUE(rendered.failed) << source << "\nprints " << rendered.text;
    } else {
      EXPECT_EQ((rendered.failed ? "error: " : "") + rendered.text, item[1].get<std::string>()) << source;
    }
  }
}

}  // namespace
}  // namespace tensorfold
