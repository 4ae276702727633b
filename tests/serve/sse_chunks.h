// The JSON of a streamed reply's events, for tests.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tensorfold::testing {

/// Every event but the closing [DONE], which must be the last.
inline std::vector<nlohmann::json> sse_chunks(const std::string& body) {
  std::vector<nlohmann::json> chunks;
  bool done = false;
  for (std::size_t begin = 0; begin < body.size();) {
    const std::size_t end = body.find("\n\n", begin);
    const std::string event = body.substr(begin, end - begin);
    begin = end == std::string::npos ? body.size() : end + 2;
    if (event.rfind(":", 0) == 0) continue;  // a keepalive
    EXPECT_EQ(event.rfind("data: ", 0), 0u) << event;
    EXPECT_FALSE(done) << "an event after [DONE]";
    done = event == "data: [DONE]";
    if (!done) chunks.push_back(nlohmann::json::parse(event.substr(6)));
  }
  EXPECT_TRUE(done);
  return chunks;
}

}  // namespace tensorfold::testing
