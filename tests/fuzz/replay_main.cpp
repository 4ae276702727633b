// Replays a seed corpus through a fuzz target without libFuzzer: each file as it is, cut short and with bytes changed,
// so that the ordinary tests (and their sanitizer builds) walk the same code. An empty corpus is a failure, not a pass.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

constexpr int kVariationsPerFile = 64;

void run(const std::vector<std::uint8_t>& input) {
  LLVMFuzzerTestOneInput(input.data(), input.size());
}

void run_with_variations(const std::vector<std::uint8_t>& input, std::uint32_t seed) {
  run(input);
  if (input.empty()) return;
  std::uint32_t state = seed * 2654435761u + 1;
  const auto random = [&state] { return state = state * 1664525u + 1013904223u; };
  for (int variation = 0; variation < kVariationsPerFile; ++variation) {
    std::vector<std::uint8_t> changed = input;
    const std::size_t at = (random() >> 8) % changed.size();
    if (variation % 4 == 0) {
      changed.resize(at);
    } else {
      changed[at] = static_cast<std::uint8_t>(random() >> 24);
    }
    run(changed);
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: %s CORPUS_FOLDER\n", arguments[0]);
    return 2;
  }
  std::uint32_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(arguments[1])) {
    if (!entry.is_regular_file()) continue;
    std::ifstream stream(entry.path(), std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
    run_with_variations(std::vector<std::uint8_t>(bytes.begin(), bytes.end()), ++files);
  }
  std::printf("%u files replayed from %s\n", files, arguments[1]);
  return files > 0 ? 0 : 1;
}
