// Input: one length byte's worth of config.json (length · 4 bytes), then model.safetensors.
#include <algorithm>

#include "base/error.h"
#include "checkpoint_walk.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace fuzz = tensorfold::fuzz;
  if (size < 1) return 0;
  const std::size_t config_bytes = std::min<std::size_t>(data[0] * 4u, size - 1);
  fuzz::write_file(fuzz::folder() / "config.json", data + 1, config_bytes);
  fuzz::write_file(fuzz::folder() / "model.safetensors", data + 1 + config_bytes, size - 1 - config_bytes);
  try {
    fuzz::walk(fuzz::folder());
  } catch (const tensorfold::Error&) {
    // A refusal is the expected answer; anything else escapes and is a finding.
  }
  return 0;
}
