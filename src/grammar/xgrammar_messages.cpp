// The two functions through which xgrammar reports (it is built with XGRAMMAR_LOG_CUSTOMIZE). Its failures become
// exceptions that compiled_grammar.cpp turns into ours; its warnings quote what the request said, which never goes to a
// log, and concern only forms of input that our own front ends don't hand over.
#include <stdexcept>
#include <string>

namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(message);
}

void LogMessageImpl(const std::string&, int, int, const std::string&) {}

}  // namespace xgrammar
