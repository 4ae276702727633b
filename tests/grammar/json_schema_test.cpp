// JSON schemas: what each keyword allows, which keywords are refused by name, and that masks are exact.
#include <ctime>

#include "base/limits.h"
#include "grammar/matching.h"

namespace tensorfold::testing {
namespace {

struct SchemaCase {
  const char* schema;
  std::vector<std::string> yes;
  std::vector<std::string> no;
};

void check(const SchemaCase& entry) {
  for (const std::string& text : entry.yes) {
    EXPECT_TRUE(accepts(schema_source(entry.schema), text)) << entry.schema << "\n on " << text;
  }
  for (const std::string& text : entry.no) {
    EXPECT_FALSE(accepts(schema_source(entry.schema), text)) << entry.schema << "\n on " << text;
  }
}

TEST(JsonSchema, Objects) {
  const SchemaCase cases[] = {
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"null"}},"required":["a"]})",
       {R"({"a":1})", R"({ "a" : -12 , "b" : null })", "\n{\"a\":0}"},
       {"{}", R"({"b":null})", R"({"b":null,"a":1})", R"({"a":1,"a":2})", R"({"a":1,"c":2})", R"({"a":1,})", "[]"}},
      {R"({"type":"object","properties":{"a":{"const":1},"b":{"const":2},"c":{"const":3}}})",
       {"{}", "{ }", R"({"a":1})", R"({"c":3})", R"({"a":1,"c":3})", R"({"a":1,"b":2,"c":3})"},
       {R"({,"a":1})", R"({"c":3,"a":1})"}},
      {R"({"type":"object"})", {"{}", R"({"x":[1,{"y":null}]})"}, {"[]", "1"}},
      {R"({"type":"object","properties":{"ab":{"const":1}},"additionalProperties":{"type":"boolean"}})",
       {R"({"ab":1,"abc":true,"a":false,"":true})", R"({"x":true})", "{}"},
       {R"({"ab":true})", R"({"x":1})", R"({"x":true,"ab":1})", R"({"\u0061b":true})"}},
      {R"({"type":"object","additionalProperties":{"type":"integer"},"minProperties":1,"maxProperties":2})",
       {R"({"x":1})", R"({"x":1,"y":2})"},
       {"{}", R"({"x":1,"y":2,"z":3})"}},
      {R"({"type":"object","patternProperties":{"^x_":{"const":1}},"additionalProperties":false})",
       {"{}", R"({"x_":1,"x_\"q":1})"},
       {R"({"y":1})", R"({"x_":2})"}},
      {R"({"type":"object","propertyNames":{"enum":["k","l"]},"additionalProperties":true})",
       {R"({"k":1,"l":[]})"},
       {R"({"m":1})"}},
      {R"({"type":"object","required":["z"]})", {R"({"z":[]})"}, {"{}", R"({"z":1,"y":2)"}},
      {R"({"type":"object","additionalProperties":false})", {"{}", "{ }"}, {R"({"a":1})"}},
      {R"({"properties":{"a":{}}})", {R"({"a":{"b":[true]}})"}, {"3"}},
      {R"({"type":"object","properties":{"q\"é\n":{"const":0}},"required":["q\"é\n"]})",
       {"{\"q\\\"\xc3\xa9\\n\":0}"},
       {"{}"}},
  };
  for (const SchemaCase& entry : cases) check(entry);
}

TEST(JsonSchema, ArraysAndValues) {
  const SchemaCase cases[] = {
      {R"({"type":"array","items":{"type":"boolean"},"minItems":1,"maxItems":3})",
       {"[true]", "[ true , false,true ]"},
       {"[]", "[true,true,true,true]", "[1]", "[true,]"}},
      {R"({"type":"array"})", {"[]", "[1,\"a\",[]]"}, {"{}"}},
      {R"({"type":"array","prefixItems":[{"const":1},{"const":2}],"minItems":1})",
       {"[1]", "[1,2]"},
       {"[]", "[2]", "[1,2,3]"}},
      {R"({"type":"array","prefixItems":[{"const":1}],"items":{"const":9},"maxItems":3})",
       {"[]", "[1]", "[1,9,9]"},
       {"[9]", "[1,9,9,9]"}},
      {R"({"enum":["a",1,null,{"k":[1.5,true]}]})", {R"("a")", "1", "null", R"({"k":[1.5,true]})"}, {"2", "\"b\""}},
      {R"({"type":"string","enum":["a",1]})", {R"("a")"}, {"1"}},
      {R"({"enum":[1,2,3,4.5],"minimum":2,"type":"integer"})", {"2", "3"}, {"1", "4.5"}},
      {R"({"const":"x"})", {R"("x")"}, {R"("y")"}},
      {R"({"type":["string","null"]})", {"null", R"("")"}, {"1"}},
      {R"({"type":["number","integer"]})", {"1", "1.5"}, {"null"}},
      {R"({})", {"1", "{}", "[null]"}, {"", "x"}},
      {R"({"type":"boolean"})", {"true", "false"}, {"True", "1"}},
  };
  for (const SchemaCase& entry : cases) check(entry);
  EXPECT_TRUE(accepts(schema_source("true"), "[1]"));
  EXPECT_NE(refusal(schema_source("false")).find("no text"), std::string::npos);
}

TEST(JsonSchema, Strings) {
  const SchemaCase cases[] = {
      {R"({"type":"string"})",
       {R"("")", R"("a\"\\\/\b\f\n\r\t\u00e9")", "\"\xf0\x9f\x98\x80\"", R"("\ud83d\ude00")"},
       {"\"\n\"", R"("\x")", R"("\ud83d")", R"("\ude00")", "\"\xff\"", "\"", "a"}},
      {R"({"type":"string","minLength":2,"maxLength":3})",
       {R"("ab")", "\"\xe6\x97\xa5\xe6\x97\xa5\"", R"("\n\u00e9\ud83d\ude00")"},
       {R"("a")", R"("abcd")"}},
      {R"({"type":"string","minLength":30,"maxLength":32})",
       {"\"" + std::string(30, 'a') + "\"", "\"" + std::string(32, 'b') + "\""},
       {"\"" + std::string(29, 'a') + "\"", "\"" + std::string(33, 'b') + "\"", "\"" + std::string(28, 'a') + "\\n\""}},
      {R"({"type":"string","minLength":26})",
       {"\"" + std::string(26, 'a') + "\"", "\"" + std::string(500, 'b') + "\""},
       {"\"" + std::string(25, 'a') + "\""}},
      {R"({"type":"string","pattern":"^[a-c]+$"})", {R"("abc")"}, {R"("")", R"("abd")"}},
      {R"({"type":"string","pattern":"b\\n"})", {R"("ab\nc")", R"("b\n")"}, {R"("b")", R"("")"}},
      {R"({"type":"string","pattern":"^\"\\\\$"})", {R"("\"\\")"}, {R"("a")"}},
      {R"({"type":"string","format":"date"})",
       {R"("2024-02-29")", R"("1999-12-31")", R"("2000-02-29")"},
       {R"("2023-02-29")", R"("1900-02-29")", R"("2024-04-31")", R"("0000-01-01")", R"("2024-1-1")"}},
      {R"({"type":"string","format":"date-time"})",
       {R"("2024-01-31T23:59:59.123Z")", R"("2024-01-31T00:00:00+02:30")"},
       {R"("2024-01-31")", R"("2024-01-31T24:00:00Z")"}},
      {R"({"type":"string","format":"uuid"})", {R"("01234567-89ab-cdef-0123-456789ABCDEF")"}, {R"("0123")"}},
      {R"({"type":"string","format":"ipv4"})", {R"("255.0.10.199")"}, {R"("256.0.0.1")", R"("01.2.3.4")"}},
      {R"({"type":"string","format":"ipv6"})",
       {R"("::1")", R"("2001:db8::8a2e:370:7334")"},
       {R"(":::")", R"("1::2::3")"}},
      {R"({"type":"string","format":"email"})", {R"("a.b@c-d.example")"}, {R"("a@b")", R"("@c.d")"}},
      {R"({"type":"string","format":"duration"})",
       {R"("P3Y6M4DT12H30M5S")", R"("PT5S")", R"("P2W")"},
       {R"("P")", R"("PT")"}},
  };
  for (const SchemaCase& entry : cases) check(entry);
}

TEST(JsonSchema, Numbers) {
  const SchemaCase cases[] = {
      {R"({"type":"integer"})", {"0", "-7", "123456789012345678"}, {"01", "1.0", "1e3", "-", "1234567890123456789"}},
      {R"({"type":"number"})", {"0", "-0.5", "1e10", "2.5E-3"}, {".5", "1.", "+1", "1e100", "NaN"}},
      {R"({"type":"integer","minimum":3,"maximum":12})", {"3", "9", "10", "12"}, {"2", "13", "-3", "03", "100"}},
      {R"({"type":"integer","minimum":-105,"maximum":-7})", {"-7", "-105", "-99", "-10"}, {"-6", "-106", "0", "7"}},
      {R"({"type":"integer","exclusiveMinimum":-1,"exclusiveMaximum":1})", {"0"}, {"-1", "1", "-0"}},
      {R"({"type":"integer","minimum":0})", {"0", "5", "999999999999999999"}, {"-1", "1000000000000000000"}},
      {R"({"type":"integer","maximum":99})", {"99", "-12345", "0"}, {"100"}},
      {R"({"type":"integer","minimum":2.5,"maximum":4.5})", {"3", "4"}, {"2", "5"}},
      {R"({"type":"number","minimum":0,"maximum":1})",
       {"0", "1", "0.5", "0.999", "1.0", "1.000"},
       {"1.1", "-0.1", "1.001", "2", "1e0"}},
      {R"({"type":"number","exclusiveMinimum":0.25,"maximum":10.5})",
       {"0.26", "0.2500001", "1", "9.99", "10", "10.5", "10.50"},
       {"0.25", "0.250", "0.2", "0", "10.51", "11", "100"}},
      {R"({"type":"number","minimum":-1.5,"exclusiveMaximum":-1.25})",
       {"-1.5", "-1.3", "-1.26", "-1.2501"},
       {"-1.25", "-1.2", "-1.51", "-1", "1.3", "-2"}},
      {R"({"type":"number","minimum":0.123,"maximum":0.125})",
       {"0.123", "0.1234", "0.125"},
       {"0.12", "0.1229", "0.1251"}},
      {R"({"type":"number","multipleOf":1,"minimum":0})", {"3"}, {"3.5"}},
      {R"({"type":"number","minimum":1e2,"maximum":1.5e2})", {"100", "150", "125.5"}, {"99", "151"}},
  };
  for (const SchemaCase& entry : cases) check(entry);
  EXPECT_NE(refusal(schema_source(R"({"type":"integer","minimum":5,"maximum":4})")).find("no text"), std::string::npos);
}

TEST(JsonSchema, Combinations) {
  const SchemaCase cases[] = {
      {R"({"anyOf":[{"type":"integer"},{"type":"string"}]})", {"1", R"("a")"}, {"null"}},
      {R"({"oneOf":[{"type":"integer"},{"type":"string"},{"type":"null"}]})", {"1", "null"}, {"true"}},
      {R"({"oneOf":[{"type":"object","properties":{"k":{"const":"a"},"v":{"type":"integer"}},"required":["k","v"]},
                    {"type":"object","properties":{"k":{"const":"b"}},"required":["k"]}]})",
       {R"({"k":"a","v":1})", R"({"k":"b"})"},
       {R"({"k":"a"})", R"({"k":"b","v":1})"}},
      {R"({"allOf":[{"type":"object","properties":{"a":{"type":"number"}},"required":["a"]},
                    {"properties":{"a":{"type":"integer","minimum":5},"b":{"const":1}},"required":["b"]}]})",
       {R"({"a":5,"b":1})"},
       {R"({"a":4,"b":1})", R"({"a":5})", R"({"a":5.5,"b":1})"}},
      {R"({"allOf":[{"additionalProperties":false,"properties":{"a":{}}},{"properties":{"b":{}}}],"type":"object"})",
       {R"({"a":1})", "{}"},
       {R"({"b":1})"}},
      {R"({"type":"object","properties":{"a":{},"b":{}},"anyOf":[{"required":["a"]},{"required":["b"]}]})",
       {R"({"a":1})", R"({"b":1})", R"({"a":1,"b":2})"},
       {"{}"}},
      {R"({"$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},
           "required":["v","next"]}},"$ref":"#/$defs/n"})",
       {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":null}})"},
       {R"({"v":1})"}},
      {R"({"type":"array","items":{"$ref":"#"}})", {"[]", "[[],[[]]]"}, {"[1]"}},
      {R"({"$defs":{"a/b~c d":{"const":1}},"$ref":"#/$defs/a~1b~0c%20d"})", {"1"}, {"2"}},
      {R"({"$defs":{"s":{"type":"string"}},"$ref":"#/$defs/s","maxLength":1})", {R"("a")"}, {R"("ab")"}},
      {R"({"title":"T","description":"d","default":1,"x-order":3,"type":"null","$schema":"s","$id":"i"})",
       {"null"},
       {"1"}},
  };
  for (const SchemaCase& entry : cases) check(entry);
}

TEST(JsonSchema, RefusesKeywordsByNameAndPlace) {
  struct Case {
    const char* schema;
    const char* keyword;
    const char* place;
  };
  const Case cases[] = {
      {R"({"properties":{"a":{"not":{}}}})", "'not'", "#/properties/a"},
      {R"({"if":{},"then":{}})", "'if'", "#"},
      {R"({"type":"array","contains":{}})", "'contains'", "#"},
      {R"({"type":"array","items":{"type":"array","uniqueItems":true}})", "'uniqueItems'", "#/items"},
      {R"({"dependentRequired":{"a":["b"]}})", "'dependentRequired'", "#"},
      {R"({"anyOf":[{"type":"integer","multipleOf":3}]})", "'multipleOf'", "#/anyOf/0"},
      {R"({"type":"string","format":"color"})", "'format'", "#"},
      {R"x({"type":"string","pattern":"(?=a)"})x", "'pattern'", "#"},
      {R"({"type":"string","pattern":"a","maxLength":3})", "'pattern'", "#"},
      {R"({"type":"string","nullable":true})", "'nullable'", "#"},
      {R"({"$ref":"http://elsewhere/schema"})", "'$ref'", "#"},
      {R"({"$ref":"#/$defs/none"})", "'$ref'", "#"},
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "'oneOf'", "#"},
      {R"({"allOf":[{"pattern":"a"},{"pattern":"b"}]})", "'pattern'", "#"},
      {R"({"type":"thing"})", "'type'", "#"},
      {R"({"type":[]})", "'type'", "#"},
      {R"({"enum":5})", "'enum'", "#"},
      {R"({"enum":["a"],"pattern":"a"})", "'pattern'", "#"},
      {R"({"required":"a"})", "'required'", "#"},
      {R"({"minLength":-1})", "'minLength'", "#"},
      {R"({"maxItems":1.5})", "'maxItems'", "#"},
      {R"({"maxLength":10000000})", "'maxLength'", "#"},
      {R"({"maxItems":2000})", "'maxItems'", "#"},
      {R"({"minimum":"1"})", "'minimum'", "#"},
      {R"({"type":"object","minProperties":2})", "'minProperties'", "#"},
      {R"({"properties":{"a":{}},"patternProperties":{"b":{}}})", "'patternProperties'", "#"},
      {R"({"frobnicate":1})", "'frobnicate'", "#"},
  };
  for (const Case& entry : cases) {
    const std::string message = refusal(schema_source(entry.schema));
    EXPECT_NE(message.find(entry.keyword), std::string::npos) << entry.schema << ": " << message;
    EXPECT_NE(message.find(entry.place), std::string::npos) << entry.schema << ": " << message;
  }
}

TEST(JsonSchema, HostileSchemasAreRefusedQuickly) {
  const std::clock_t start = std::clock();  // of this process alone
  std::string nested = R"({"type":"null"})";
  for (int i = 0; i < 2000; ++i) nested = R"({"items":)" + nested + "}";
  refusal(schema_source(nested));  // large or not, it ends
  std::string values;
  for (int i = 0; i < 60'000; ++i) values += fmt::format("{}\"value number {}\"", i == 0 ? "" : ",", i);
  EXPECT_NE(refusal(schema_source(R"({"enum":[)" + values + "]}")), "");
  EXPECT_NE(
      refusal(schema_source(R"({"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"})")),
      "");
  EXPECT_NE(refusal(schema_source(R"({"$defs":{"a":{"allOf":[{"$ref":"#/$defs/a"}]}},"$ref":"#/$defs/a"})")), "");
  EXPECT_NE(
      refusal(schema_source(
          R"({"$defs":{"a":{"type":"object","properties":{"x":{"$ref":"#/$defs/a"}},"required":["x"]}},"$ref":"#/$defs/a"})")),
      "");
  // Every reference doubles.
  std::string doubling = R"({"$defs":{"d0":{"type":"null"})";
  for (int i = 1; i < 60; ++i) {
    doubling +=
        fmt::format(R"(,"d{}":{{"allOf":[{{"$ref":"#/$defs/d{}"}},{{"$ref":"#/$defs/d{}"}}]}})", i, i - 1, i - 1);
  }
  EXPECT_NE(refusal(schema_source(doubling + R"(},"$ref":"#/$defs/d59"})")), "");
  EXPECT_NE(
      refusal(schema_source(
          R"({"type":"array","items":{"type":"array","items":{"type":"string","minLength":4000},"minItems":4000},"minItems":4000})")),
      "");
  std::string properties;
  for (int i = 0; i < 1000; ++i) properties += fmt::format("{}\"property{}\":{{}}", i == 0 ? "" : ",", i);
  refusal(schema_source(R"({"properties":{)" + properties + "}}"));
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 60.0);
}

TEST(JsonSchema, MasksAreExact) {
  const char* schemas[] = {
      R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150}},"required":["name"]})",
      R"({"type":"object","properties":{"a":{"type":"number","minimum":0,"maximum":1}},"additionalProperties":{"type":"boolean"}})",
      R"({"type":"array","items":{"type":"array","items":{"enum":["a","ab","aba",12,null]},"maxItems":3}})",
      R"({"type":"string","maxLength":5})",
      R"({"type":"string","pattern":"^(ab|a)*\"$"})",
      R"({"type":"string","minLength":3,"maxLength":200})",
      R"({"type":"string","format":"date-time"})",
      R"({})"};
  for (const char* schema : schemas) {
    for (unsigned seed = 0; seed < 3; ++seed) {
      bool complete = false;
      const std::string text = check_masks(schema_source(schema), seed, 40, complete);
      if (complete) {
        EXPECT_TRUE(nlohmann::json::accept(text)) << schema << ": " << text;
      }
      if (HasFailure()) FAIL() << schema;
    }
  }
  bool complete = false;
  check_masks(object_source(), 7, 60, complete);
}

TEST(JsonSchema, BlanksAreBounded) {
  const std::string most(static_cast<std::size_t>(limits::kGrammarBlanksMax), ' ');
  EXPECT_TRUE(accepts(object_source(), "{" + most + "}"));
  EXPECT_FALSE(accepts(object_source(), "{" + most + " }"));
  EXPECT_TRUE(accepts(object_source(), most + "{\"a\"" + most + ":" + most + "1" + most + "}"));
}

}  // namespace
}  // namespace tensorfold::testing
