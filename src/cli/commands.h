// The commands: one file each, all with the same face. `words` is what follows the command's name; the result is the
// exit status (0 success, 1 refused, 2 usage).
#pragma once

#include <string>
#include <vector>

namespace tensorfold::cli {

int run_serve(const std::vector<std::string>& words);
int run_info(const std::vector<std::string>& words);
int run_chat(const std::vector<std::string>& words);
int run_verify(const std::vector<std::string>& words);
int run_convert(const std::vector<std::string>& words);
int run_bench(const std::vector<std::string>& words);
int run_capabilities(const std::vector<std::string>& words);

/// "0.1.0".
const char* version();
/// Of the source tree, when it was built: "1f13195", "1f13195+" with changes, or "unknown".
const char* build_commit();

}  // namespace tensorfold::cli
