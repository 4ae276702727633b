// Fuzzes the reading of tokenizer.json and, when it loads, encoding and decoding with what it describes.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tensorfold;
  try {
    const auto tokenizer = Tokenizer::from_json({reinterpret_cast<const char*>(data), size}, "");
    for (const std::string_view text :
         {"", "Hello, world 123", " a\xCC\x81\n\n<s>\xE2\x82", "\xF0\x9F\x91\xA9'LL  x"}) {
      for (const bool control : {false, true}) {
        const auto ids = tokenizer->encode(text, {.add_special_tokens = control, .parse_added_tokens = control});
        StreamDecoder decoder(tokenizer, false);
        std::string streamed;
        for (const std::int32_t id : ids) streamed += decoder.push(id);
        streamed += decoder.finish();
        TF_ASSERT(streamed == tokenizer->decode(ids, false));
      }
    }
  } catch (const Error&) {
    // A refusal is an answer.
  }
  return 0;
}
