// Decoders: token texts back to text, whole or token by token. A chain is classified once at load by how much of a
// reply must be held back before its text is certain.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer_regex.h"

namespace tensorfold {

class Decoder {
 public:
  /// From the "decoder" of tokenizer.json. Null joins the tokens with spaces, as the package does.
  static Decoder from_json(const nlohmann::json& description);
  static Decoder byte_level();
  /// SentencePiece: U+2581 is a space, <0x..> a byte; the first space is dropped when one was added.
  static Decoder sentencepiece(bool strip_first_space);

  std::string decode(std::vector<std::string> tokens) const;

  /// What a token adds in the middle of a text.
  std::string token_bytes(std::string_view token) const;

  /// Token by token. `pending` holds what isn't certain yet, `at_start` says that nothing came so far (both start as ""
  /// and true). Concatenated results and finish() equal decode().
  std::string push(std::string_view token, std::string& pending, bool& at_start) const;
  std::string finish(std::string& pending, bool& at_start) const;

 private:
  enum class Kind { kByteLevel, kByteFallback, kFuse, kReplace, kStrip, kMetaspace };
  struct Step {
    Kind kind;
    std::shared_ptr<const TextPattern> pattern;  // kReplace
    std::string content;                         // kReplace: put in; kStrip, kMetaspace: the character
    std::size_t strip_start = 0, strip_stop = 0;
    bool drops_first = false;  // kMetaspace
  };
  enum class Streaming {
    kBytes,   // one byte-level step: only an unfinished UTF-8 sequence is held back
    kTokens,  // steps on single tokens, runs of byte tokens held back
    kWhole,   // anything else: all held back
  };

  static void read_steps(const nlohmann::json& description, std::vector<Step>& steps, int& steps_left);
  static Step read_step(const std::string& type, const nlohmann::json& description);
  void classify();
  static std::string apply_to_token(const Step& step, std::string token, bool is_first);
  std::string apply_range(std::string token, std::size_t begin, std::size_t end, bool is_first) const;
  std::string flush_run(std::string& pending) const;
  std::string leave_start(std::string text, bool& at_start) const;

  std::vector<Step> steps_;
  bool join_with_spaces_ = false;
  Streaming streaming_ = Streaming::kWhole;
  std::size_t byte_fallback_at_ = 0, fuse_at_ = 0;  // indices in steps_, steps_.size() when absent
};

}  // namespace tensorfold
