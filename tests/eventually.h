// Waiting for what another thread brings about, in tests that are about whether it comes and not about how fast: a machine
// that is busy with other things must not fail them.
#pragma once

#include <chrono>
#include <thread>

namespace tensorfold::testing {

/// True as soon as the condition holds; false when it hasn't within two minutes.
template <typename Condition>
bool eventually(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  auto pause = std::chrono::microseconds(200);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(pause);
    if (pause < std::chrono::milliseconds(10)) pause *= 2;
  }
  return true;
}

}  // namespace tensorfold::testing
