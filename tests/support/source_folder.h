// Where the repository's files lie: as compiled in, or elsewhere for a program that was carried to another machine.
#pragma once

#include <cstdlib>
#include <filesystem>

namespace tensorfold::test {

inline std::filesystem::path source_folder() {
  const char* carried = std::getenv("TENSORFOLD_SOURCE");
  return carried != nullptr ? carried : TENSORFOLD_SOURCE_DIR;
}

}  // namespace tensorfold::test
