// GrammarCompiler (grammar.h): from sources to xgrammar's compiled grammars, with a cache whose size is bounded.
#include <xgrammar/xgrammar.h>

#include <list>
#include <mutex>
#include <unordered_map>

#include "base/error.h"
#include "base/limits.h"
#include "grammar/grammar.h"
#include "grammar/shared_matcher.h"

namespace tensorfold {
namespace {

class XgrammarGrammar final : public CompiledGrammar {
 public:
  XgrammarGrammar(xgrammar::CompiledGrammar compiled, std::int32_t vocabulary_size)
      : compiled_(std::move(compiled)), vocabulary_size_(vocabulary_size), memory_bytes_(compiled_.MemorySizeBytes()) {}
  std::unique_ptr<GrammarMatcher> start() const override {
    return std::make_unique<SharedMatcher>(std::make_shared<MatcherTrunk>(compiled_, vocabulary_size_));
  }
  std::size_t memory_bytes() const override { return memory_bytes_; }

 private:
  xgrammar::CompiledGrammar compiled_;
  std::int32_t vocabulary_size_;
  std::size_t memory_bytes_;
};

/// Least recently used leaves first; what is in use lives on through its own pointer.
class GrammarCache {
 public:
  std::shared_ptr<const CompiledGrammar> find(const std::string& key) {
    std::lock_guard lock(mutex_);
    const auto found = entries_.find(key);
    if (found == entries_.end()) return nullptr;
    order_.splice(order_.begin(), order_, found->second);
    return found->second->grammar;
  }

  void add(const std::string& key, std::shared_ptr<const CompiledGrammar> grammar) {
    std::lock_guard lock(mutex_);
    if (entries_.contains(key)) return;  // compiled twice at once
    bytes_ += grammar->memory_bytes() + key.size();
    order_.push_front({key, std::move(grammar)});
    entries_[key] = order_.begin();
    while (order_.size() > limits::kGrammarCacheEntriesMax || bytes_ > limits::kGrammarCacheBytesMax) {
      const Entry& last = order_.back();
      bytes_ -= last.grammar->memory_bytes() + last.key.size();
      entries_.erase(last.key);
      order_.pop_back();
      if (order_.empty()) break;
    }
  }

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const CompiledGrammar> grammar;
  };
  std::mutex mutex_;
  std::list<Entry> order_;
  std::unordered_map<std::string, std::list<Entry>::iterator> entries_;
  std::size_t bytes_ = 0;
};

class XgrammarCompiler final : public GrammarCompiler {
 public:
  explicit XgrammarCompiler(const GrammarVocabulary& vocabulary)
      : vocabulary_size_(static_cast<std::int32_t>(vocabulary.token_bytes.size())),
        tokenizer_(vocabulary.token_bytes, xgrammar::VocabType::RAW, vocabulary_size_, std::vector<std::int32_t>{}),
        // One thread: the pool of the server already holds one for each request. No cache: ours has a bound.
        compiler_(tokenizer_, 1, false, -1, false) {}

  std::shared_ptr<const CompiledGrammar> compile(const GrammarSource& source) override {
    const std::string text = grammar_text(source);
    if (auto known = cache_.find(text)) return known;
    auto compiled = compile_text(text);
    cache_.add(text, compiled);
    return compiled;
  }

 private:
  std::shared_ptr<const CompiledGrammar> compile_text(const std::string& text) {
    try {
      return std::make_shared<XgrammarGrammar>(compiler_.CompileGrammar(text), vocabulary_size_);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      // Our front ends hand over what xgrammar accepts, so this is unexpected; still, only this request fails.
      fail(ErrorCode::kInvalidArgument, "the grammar can't be compiled: {}", error.what());
    }
  }

  std::int32_t vocabulary_size_;
  xgrammar::TokenizerInfo tokenizer_;
  xgrammar::GrammarCompiler compiler_;
  GrammarCache cache_;
};

}  // namespace

std::shared_ptr<GrammarCompiler> GrammarCompiler::create(GrammarVocabulary vocabulary) {
  return std::make_shared<XgrammarCompiler>(vocabulary);
}

}  // namespace tensorfold
