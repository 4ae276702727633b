// See fake_model.h.
#include "serve/fake_model.h"

#include <chrono>

#include "base/error.h"

namespace tensorfold::testing {
namespace {

std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

std::uint64_t prompt_hash(const std::vector<std::int32_t>& tokens, std::uint64_t seed) {
  std::uint64_t hash = mix(seed + 1);
  for (const std::int32_t token : tokens) hash = mix(hash ^ static_cast<std::uint64_t>(token + 1));
  return hash;
}

std::int32_t letter(std::uint64_t hash, int index) {
  return static_cast<std::int32_t>('a' + mix(hash + static_cast<std::uint64_t>(index)) % 26);
}

}  // namespace

std::vector<std::int32_t> FakeTokenizer::encode(std::string_view text, EncodeOptions) const {
  std::vector<std::int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::vector<std::int32_t> FakeTokenizer::encode_segments(std::span<const PromptSegment> segments, std::size_t) const {
  std::string text;
  for (const PromptSegment& segment : segments) text += segment.text;
  return encode(text, {});
}

std::string FakeTokenizer::decode(std::span<const std::int32_t> ids, bool) const {
  std::string text;
  for (const std::int32_t id : ids) text += token_bytes(id);
  return text;
}

std::string FakeTokenizer::token_bytes(std::int32_t id) const {
  return id < 256 ? std::string(1, static_cast<char>(id)) : std::string();
}

std::string_view FakeTokenizer::token_text(std::int32_t id) const {
  static const std::string bytes = [] {
    std::string all;
    for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
    return all;
  }();
  return id < 256 ? std::string_view(bytes).substr(static_cast<std::size_t>(id), 1) : std::string_view("<end>");
}

std::optional<std::int32_t> FakeTokenizer::token_id(std::string_view text) const {
  if (text == "<end>") return kEndToken;
  if (text.size() == 1) return static_cast<unsigned char>(text[0]);
  return std::nullopt;
}

std::vector<PromptSegment> FakeTemplate::render(const nlohmann::ordered_json& variables, std::int64_t) const {
  std::vector<PromptSegment> segments;
  for (const auto& tool : variables.value("tools", nlohmann::ordered_json::array())) {
    segments.push_back({"[tool]", true});
    segments.push_back({tool["function"]["name"].get<std::string>(), false});
  }
  for (const auto& message : variables["messages"]) {
    segments.push_back({"[" + message["role"].get<std::string>() + "]", true});
    segments.push_back({message["content"].get<std::string>(), false});
    if (segments.back().text == "OVERFLOW") fail(ErrorCode::kResourceExhausted, "the text grows beyond its limit");
    if (segments.back().text == "REJECT") fail(ErrorCode::kInvalidArgument, "the template says no");
    for (const auto& call : message.value("tool_calls", nlohmann::ordered_json::array())) {
      segments.push_back({"\n<tool_call>\n{\"name\": \"", true});
      segments.push_back({call["function"]["name"].get<std::string>(), false});
      segments.push_back({"\", \"arguments\": ", true});
      segments.push_back({call["function"]["arguments"].dump(), false});
      segments.push_back({"}\n</tool_call>", true});
    }
  }
  if (variables.value("add_generation_prompt", false)) {
    segments.push_back({variables.value("enable_thinking", false) ? "[assistant]<think>" : "[assistant]", true});
  }
  return segments;
}

struct FakeEngine::Stream {
  StreamRequest request;
  StreamSink sink;
  std::string script;  // empty: letters
  bool scripted = false;
  bool fails = false;
  bool breaks = false;
  std::uint64_t hash = 0;
  int index = 0;
  bool announced = false;
  std::atomic<bool> cancel{false};
};

class FakeEngine::Handle final : public StreamHandle {
 public:
  explicit Handle(std::shared_ptr<Stream> stream) : stream_(std::move(stream)) {}
  void cancel() override { stream_->cancel = true; }

 private:
  std::shared_ptr<Stream> stream_;
};

FakeEngine::FakeEngine(std::int32_t lanes, std::int32_t context, double round_ms) : round_ms_(round_ms) {
  facts_.lanes = lanes;
  facts_.context = context;
  facts_.model.vocabulary_size = kFakeVocabulary;
  thread_ = std::thread([this] { run(); });
}

FakeEngine::~FakeEngine() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

EngineLoad FakeEngine::load() const {
  std::lock_guard lock(mutex_);
  EngineLoad load;
  load.running = std::min<std::int32_t>(static_cast<std::int32_t>(streams_.size()), facts_.lanes);
  load.waiting = static_cast<std::int32_t>(streams_.size()) - load.running;
  return load;
}

std::string FakeEngine::last_owner() const {
  std::lock_guard lock(mutex_);
  return last_owner_;
}

std::unique_ptr<StreamHandle> FakeEngine::open(StreamRequest request, StreamSink sink) {
  auto stream = std::make_shared<Stream>();
  std::string prompt;
  for (const std::int32_t id : request.prompt.tokens) prompt.push_back(static_cast<char>(id));
  const std::size_t say = prompt.find("SAY:");
  if (say != std::string::npos) {
    stream->scripted = true;
    stream->script = prompt.substr(say + 4);
    stream->script = stream->script.substr(0, stream->script.find("[assistant]"));
  }
  stream->fails = prompt.find("FAIL") != std::string::npos ||
                  (prompt.find("ODD") != std::string::npos && request.sampling.seed % 2 == 1);
  stream->breaks = prompt.find("BREAK") != std::string::npos;
  stream->hash = prompt_hash(request.prompt.tokens, request.sampling.seed);
  stream->request = std::move(request);
  stream->sink = std::move(sink);
  std::lock_guard lock(mutex_);
  if (streams_.size() >= requests_max_) fail(ErrorCode::kResourceExhausted, "the queue is full");
  last_owner_ = stream->request.prompt.owner;
  last_drafts_ = stream->request.drafts;
  streams_.push_back(stream);
  changed_.notify_all();
  return std::make_unique<Handle>(stream);
}

void FakeEngine::finish(Stream& stream, FinishReason reason, const std::string& message) {
  FinishEvent event;
  event.reason = reason;
  event.message = message;
  event.statistics.prompt_tokens = static_cast<std::int32_t>(stream.request.prompt.tokens.size());
  event.statistics.reply_tokens = stream.index;
  event.statistics.rounds = stream.index;
  event.statistics.seed = stream.request.sampling.seed;
  if (reason == FinishReason::kCancelled) ++cancelled_;
  stream.sink(std::move(event));
}

/// One round of one stream. True when it has ended.
bool FakeEngine::step(Stream& stream) {
  if (stream.cancel) {
    finish(stream, FinishReason::kCancelled);
    return true;
  }
  if (stream.breaks || (stream.fails && stream.index == 3)) {
    finish(stream, FinishReason::kError, "a made-up failure");
    return true;
  }
  if (!stream.announced) {
    stream.announced = true;
    const auto total = static_cast<std::int32_t>(stream.request.prompt.tokens.size());
    stream.sink(PromptProgressEvent{total, total, 0});
    for (std::int32_t i = 0; stream.request.score_prompt && i < total; ++i) {
      PromptScoreEvent score;
      score.index = i;
      score.chosen = {stream.request.prompt.tokens[static_cast<std::size_t>(i)], -1.5f};
      stream.sink(std::move(score));
    }
  }
  if (stream.index >= stream.request.reply_tokens_max) {
    finish(stream, FinishReason::kLength);
    return true;
  }
  TokenEvent event;
  event.index = stream.index;
  const auto place = static_cast<std::size_t>(stream.index);
  if (!stream.scripted) {
    event.token = letter(stream.hash, stream.index);
  } else if (place < stream.script.size()) {
    event.token = static_cast<unsigned char>(stream.script[place]);
  } else {
    event.token = kEndToken;
  }
  ++stream.index;
  ++tokens_made_;
  event.is_stop_token = event.token == kEndToken;
  event.chosen = {event.token, -0.5f};
  if (stream.request.logprobs_top > 0) event.top = {{event.token, -0.5f}, {'~', -2.0f}};
  const bool ended = event.is_stop_token && !stream.request.ignore_stop_tokens;
  const bool stopped = stream.request.rule && stream.request.rule->advance(event.token) == PathRule::Verdict::kStop;
  stream.sink(std::move(event));
  if (ended || stopped) {
    finish(stream, ended ? FinishReason::kStopToken : FinishReason::kStopRule);
    return true;
  }
  return false;
}

void FakeEngine::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_ || !streams_.empty()) {
    changed_.wait(lock, [this] { return stopping_ || !streams_.empty(); });
    std::deque<std::shared_ptr<Stream>> now = streams_;
    const bool stopping = stopping_;
    lock.unlock();
    std::vector<std::shared_ptr<Stream>> ended;
    std::int32_t lane = 0;
    for (const auto& stream : now) {
      if (stopping) stream->cancel = true;
      const bool active = lane++ < facts_.lanes;
      if ((active || stream->cancel) && step(*stream)) ended.push_back(stream);
    }
    if (round_ms_ > 0) std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(round_ms_));
    lock.lock();
    for (const auto& stream : ended) std::erase(streams_, stream);
  }
}

std::string fake_reply(const std::string& prompt, std::uint64_t seed, int tokens) {
  const std::uint64_t hash = prompt_hash(FakeTokenizer().encode(prompt, {}), seed);
  std::string reply;
  for (int i = 0; i < tokens; ++i) reply.push_back(static_cast<char>(letter(hash, i)));
  return reply;
}

std::shared_ptr<ServedModel> make_fake_model(FakeEngine*& engine, std::int32_t lanes, std::int32_t context,
                                             double round_ms) {
  auto model = std::make_shared<ServedModel>();
  model->names = {"fake", "also-fake"};
  model->tokenizer = std::make_shared<FakeTokenizer>();
  model->prompts = std::make_shared<PromptRenderer>(std::make_shared<FakeTemplate>(), nlohmann::ordered_json::object());
  model->reasoning = ReasoningFormat::kThink;
  model->thinking_default = false;
  model->defaults.max_tokens = 32;
  model->stop_tokens = {kEndToken};
  auto owned = std::make_unique<FakeEngine>(lanes, context, round_ms);
  engine = owned.get();
  model->engine = std::move(owned);
  model->structured_output = std::make_shared<StructuredOutput>(model->tokenizer, kFakeVocabulary, model->reasoning);
  return model;
}

}  // namespace tensorfold::testing
