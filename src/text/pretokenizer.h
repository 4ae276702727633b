// Pre-tokenizers: cut a normalized text into the pieces the model sees. A chain of steps, each handing its pieces
// straight to the next, so that no list of a long text's pieces is ever held.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tensorfold {

struct Piece {
  std::string_view text;
  bool at_start = false;  // begins where the whole text begins
};

class PieceSink {
 public:
  virtual ~PieceSink() = default;
  virtual void accept(Piece piece) = 0;
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void split(Piece piece, PieceSink& sink) const = 0;
};

/// A tokenizer's steps in order. `bytes_last` says that the last step is byte-level and was left to the model: pieces
/// come out as raw bytes and the model maps them.
class PreTokenizerChain {
 public:
  void split(Piece piece, PieceSink& sink) const;
  void add(std::unique_ptr<PreTokenizer> step);
  bool ends_in_bytes() const { return ends_in_bytes_; }

  /// From the "pre_tokenizer" of tokenizer.json (null gives an empty chain).
  static PreTokenizerChain from_json(const nlohmann::json& description);
  /// Isolating splits by these patterns in turn, then bytes (GGUF).
  static PreTokenizerChain byte_level(const std::vector<std::string_view>& patterns);

 private:
  std::vector<std::unique_ptr<PreTokenizer>> steps_;
  bool ends_in_bytes_ = false;
};

/// The visible characters that byte-level vocabularies write for bytes.
const std::string& byte_level_character(unsigned char byte);
/// The byte such a character stands for, or -1.
int byte_level_byte(char32_t character);

}  // namespace tensorfold
