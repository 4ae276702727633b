// A deterministic engine, tokenizer and template for server tests: tokens are bytes, replies are a hash of (prompt,
// seed, index) or what the prompt asks for, rounds take a little time. One thread plays the engine thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "serve/served_model.h"
#include "text/chat_template.h"

namespace tensorfold::testing {

inline constexpr std::int32_t kEndToken = 256;
inline constexpr std::int32_t kFakeVocabulary = 260;

class FakeTokenizer : public Tokenizer {
 public:
  std::vector<std::int32_t> encode(std::string_view text, EncodeOptions) const override;
  std::vector<std::int32_t> encode_segments(std::span<const PromptSegment> segments,
                                            std::size_t tokens_max) const override;
  std::string decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const override;
  std::string token_bytes(std::int32_t id) const override;
  std::string_view token_text(std::int32_t id) const override;
  std::optional<std::int32_t> token_id(std::string_view token_text) const override;
  bool is_special(std::int32_t id) const override { return id >= 256; }
  std::int32_t size() const override { return kFakeVocabulary; }
  std::optional<std::int32_t> bos_token() const override { return std::nullopt; }
  std::optional<std::int32_t> eos_token() const override { return kEndToken; }
  std::string special_text(std::string_view) const override { return ""; }
  std::string chat_template(std::string_view) const override { return ""; }
};

/// "[tool]name" for each tool, "[role]content" for each message with its calls in the Hermes form, "[assistant]" at the
/// end, "<think>" after it while thinking.
class FakeTemplate final : public ChatTemplate {
 public:
  std::vector<PromptSegment> render(const nlohmann::ordered_json& variables, std::int64_t) const override;
  const std::string& source() const override { return source_; }

 private:
  std::string source_ = "enable_thinking </think> reasoning_effort 'low' 'high'";
};

/// A prompt that contains "SAY:text" is answered by that text and the end token; "FAIL" by an error after three tokens,
/// "BREAK" by one before any, "ODD" as "FAIL" where the seed is odd; anything else by letters without end.
class FakeEngine final : public Engine {
 public:
  explicit FakeEngine(std::int32_t lanes = 4, std::int32_t context = 4096, double round_ms = 1.0);
  ~FakeEngine() override;
  const EngineFacts& facts() const override { return facts_; }
  EngineLoad load() const override;
  std::unique_ptr<StreamHandle> open(StreamRequest request, StreamSink sink) override;

  int cancelled() const { return cancelled_; }
  int running() const { return load().running; }
  std::int64_t tokens_made() const { return tokens_made_; }
  void set_round_ms(double round_ms) { round_ms_ = round_ms; }
  /// open() refuses, as a full queue does, once this many requests are there.
  void set_requests_max(std::size_t count) { requests_max_ = count; }
  std::string last_owner() const;
  bool last_drafts() const { return last_drafts_; }

 private:
  struct Stream;
  class Handle;
  void run();
  bool step(Stream& stream);
  void finish(Stream& stream, FinishReason reason, const std::string& message = "");

  EngineFacts facts_;
  std::atomic<double> round_ms_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Stream>> streams_;
  std::atomic<std::size_t> requests_max_{1u << 20};
  std::atomic<int> cancelled_{0};
  std::atomic<std::int64_t> tokens_made_{0};
  std::atomic<bool> last_drafts_{true};
  std::string last_owner_;
  bool stopping_ = false;
  std::thread thread_;
};

/// The reply that FakeEngine gives to an ordinary prompt.
std::string fake_reply(const std::string& prompt, std::uint64_t seed, int tokens);

std::shared_ptr<ServedModel> make_fake_model(FakeEngine*& engine, std::int32_t lanes = 4, std::int32_t context = 4096,
                                             double round_ms = 1.0);

}  // namespace tensorfold::testing
