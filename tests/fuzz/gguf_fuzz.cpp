// Input: one GGUF file.
#include "base/error.h"
#include "checkpoint_walk.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace fuzz = tensorfold::fuzz;
  fuzz::write_file(fuzz::folder() / "model.gguf", data, size);
  try {
    fuzz::walk(fuzz::folder() / "model.gguf");
  } catch (const tensorfold::Error&) {
    // A refusal is the expected answer; anything else escapes and is a finding.
  }
  return 0;
}
