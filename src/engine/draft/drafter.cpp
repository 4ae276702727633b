// Drives the draft sources (see drafter.h).
#include "engine/draft/drafter.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"
#include "engine/draft/row_grant.h"

namespace tensorfold {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kCostWeight = 0.2, kCheaperWeight = 0.5;
constexpr double kSlowMoment = 4.0;  // times the mean: what is measured beyond that was another program's time
constexpr double kAnyRate = std::numeric_limits<double>::infinity();  // of an ask that needn't pay

void update(double& mean, double seconds) {
  const double weight = seconds < mean ? kCheaperWeight : kCostWeight;
  mean = mean == 0.0 ? seconds : mean + weight * (std::min(seconds, kSlowMoment * mean) - mean);
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

bool contains(const std::vector<std::int32_t>& values, std::int32_t value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

std::vector<double> landing_chances(const DepthRule& rule, const std::vector<DraftNode>& nodes) {
  const std::vector<std::int32_t> depths = node_depths(nodes);
  std::vector<double> chances;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const double reached = nodes[i].parent < 0 ? 1.0 : chances[static_cast<std::size_t>(nodes[i].parent)];
    chances.push_back(reached * rule.chance(depths[i], nodes[i].chance));
  }
  return chances;
}

/// The tokens after the pending one that a preempted stream had come to.
std::vector<DraftNode> owed_nodes(const Stream& stream, std::int32_t depth_max) {
  std::vector<DraftNode> nodes;
  const auto next = stream.context().size() - static_cast<std::size_t>(stream.prompt_length());
  for (std::size_t i = next; i < stream.owed().size() && static_cast<std::int32_t>(nodes.size()) < depth_max; ++i) {
    nodes.push_back({stream.owed()[i], static_cast<std::int32_t>(nodes.size()) - 1, 1.0});
  }
  return nodes;
}

/// Whether the rows of the last pass were the prompt's: each window brings a token beyond the first.
bool is_at_prompt(const Stream& stream) {
  return static_cast<std::int32_t>(stream.context().size()) <= stream.prompt_length() + 1;
}

const std::vector<std::int32_t>& stop_tokens_of(const Stream& stream) {
  static const std::vector<std::int32_t> none;
  return stream.request().ignore_stop_tokens ? none : stream.request().stop_tokens;
}

}  // namespace

struct Drafter::Round {
  std::vector<FedRows>& fed;
  std::int32_t lanes;
  const CostModel& costs;

  /// What a pass without drafts takes, and the part of it that each lane bears.
  double pass_seconds() const { return costs.predict(std::max(lanes, 1)); }
  double plain_seconds() const { return pass_seconds() / std::max(lanes, 1); }
  /// What `rows` more rows of each lane add to that.
  double rows_seconds(std::int32_t rows) const {
    return costs.predict(std::max(lanes, 1) * (1 + rows)) / std::max(lanes, 1) - plain_seconds();
  }
};

Drafter::Drafter(std::vector<std::shared_ptr<DraftSource>> sources, const DrafterLimits& limits,
                 std::uint64_t schedule_seed)
    : sources_(std::move(sources)),
      known_(sources_.size()),
      limits_(limits),
      at_random_(schedule_seed != 0),
      sleeps_at_random_(schedule_seed % 8 == 7),
      random_(schedule_seed) {
  for (std::size_t source = 0; source < sources_.size(); ++source) {
    TF_ASSERT(sources_[source] != nullptr);
    known_[source].history = DepthRule(sources_[source]->facts().chance_prior);
  }
}

DraftStream Drafter::view(Stream& stream, std::size_t source) const {
  DraftStream view;
  view.state = stream.drafts.sources[source].state.get();
  view.context = &stream.context();
  view.prompt_length = stream.prompt_length();
  view.logit_adjust = &stream.logit_adjust();
  view.sampling = &stream.request().sampling;
  view.owner = &stream.request().prompt.owner;
  if (stream.cache().is_admitted()) {
    view.slot = stream.cache().slot();
    view.pages = &stream.cache().tables();
  }
  return view;
}

void Drafter::open(Stream& stream) {
  if (!stream.request().drafts || sources_.empty()) return;
  stream.drafts.sources.resize(sources_.size());
  for (std::size_t source = 0; source < sources_.size(); ++source) {
    StreamDrafts::Source& own = stream.drafts.sources[source];
    own.rule = DepthRule(sources_[source]->facts().chance_prior);
    if (sources_[source]->facts().runs_model) {
      // A stream is as well off as drafting has been so far: where it didn't pay, nothing is tried at its expense.
      own.rule = DepthRule::begin_with(known_[source].history);
      own.account = known_[source].account;
    }
    try {
      own.state = sources_[source]->open(view(stream, source));
    } catch (const std::exception& error) {
      silence(stream, source, error.what());
    }
  }
}

void Drafter::close(Stream& stream) {
  for (std::size_t source = 0; source < stream.drafts.sources.size(); ++source) {
    if (stream.drafts.sources[source].state == nullptr) continue;
    try {
      sources_[source]->close(view(stream, source));
    } catch (const std::exception& error) {
      silence(stream, source, error.what());
    }
  }
  stream.drafts = {};
}

void Drafter::silence(Stream& stream, std::size_t source, std::string_view why) {
  spdlog::warn("stream {}: goes on without {} drafts: {}", stream.request().id,
               draft_kind_name(sources_[source]->facts().kind), why);
  stream.drafts.sources[source].state.reset();
  if (stream.drafts.window.source == static_cast<std::int32_t>(source)) stream.drafts.window = {};
}

std::uint32_t Drafter::row_flags(const Stream& stream) const {
  std::uint32_t flags = 0;
  for (std::size_t source = 0; source < stream.drafts.sources.size(); ++source) {
    const StreamDrafts::Source& own = stream.drafts.sources[source];
    if (own.state == nullptr || !own.listens) continue;
    if (sources_[source]->facts().needs_hidden_rows) flags |= kRowWantsHidden;
    if (sources_[source]->facts().needs_tapped_rows) flags |= kRowIsTapped;
  }
  return flags;
}

void Drafter::charge(Stream& stream, std::size_t source, double seconds) {
  stream.drafts.sources[source].account.charge(seconds);
  known_[source].account.charge(seconds);
}

double Drafter::affordable_seconds(const Stream& stream, std::size_t source) const {
  return std::min(stream.drafts.sources[source].account.balance(), known_[source].account.balance());
}

void Drafter::begin_round(const Round& round) {
  const double plain = round.plain_seconds();
  for (std::size_t source = 0; source < sources_.size(); ++source) {
    std::int32_t streams = 0;
    for (const FedRows& fed : round.fed) {
      StreamDrafts::Source& own = fed.stream->drafts.sources[source];
      own.has_rows = own.listens;
      if (own.has_rows) own.rows_since_gap += static_cast<std::int32_t>(fed.rows.size());
      if (own.state == nullptr || fed.stream->prompt_rows_left() > 0) continue;
      own.account.earn(plain, round.pass_seconds());
      ++streams;
    }
    if (streams > 0) known_[source].account.earn(streams * plain, round.pass_seconds());
  }
}

void Drafter::observe(const FedRows& fed, const Round& round) {
  Stream& stream = *fed.stream;
  const DraftWindow& window = stream.drafts.window;
  if (window.kind != WindowKind::kDrafted || fed.fed_drafts == 0) return;
  const auto source = static_cast<std::size_t>(window.source);
  DepthRule& rule = stream.drafts.sources[source].rule;
  const std::vector<DraftNode>& nodes = window.proposal.nodes;
  const std::vector<std::int32_t> depths = node_depths(nodes);
  DepthRule& history = known_[source].history;
  rule.begin_window();
  history.begin_window();
  std::vector<bool> level_seen(static_cast<std::size_t>(limits_.window_rows), false), level_landed = level_seen;
  for (std::int32_t i = 0; i < fed.fed_drafts; ++i) {
    const DraftNode& node = nodes[static_cast<std::size_t>(i)];
    if (node.parent >= 0 && !contains(fed.landed, node.parent)) continue;
    const bool landed = contains(fed.landed, i);
    const auto depth = static_cast<std::size_t>(depths[static_cast<std::size_t>(i)]);
    rule.observe_draft(static_cast<std::int32_t>(depth), node.chance, landed);
    history.observe_draft(static_cast<std::int32_t>(depth), node.chance, landed);
    level_seen.at(depth) = true;
    if (landed) level_landed.at(depth) = true;
  }
  for (std::size_t depth = 0; depth < level_seen.size() && level_seen[depth]; ++depth) {
    rule.observe_level(static_cast<std::int32_t>(depth), level_landed[depth]);
    history.observe_level(static_cast<std::int32_t>(depth), level_landed[depth]);
  }
  stream.drafts.sources[source].missed = fed.landed.empty();
  const double saved = static_cast<double>(fed.landed.size()) * round.plain_seconds();
  charge(stream, source, round.rows_seconds(fed.fed_drafts) - saved);
  try {
    sources_[source]->observe(view(stream, source), window.proposal, fed.fed_drafts, fed.landed);
  } catch (const std::exception& error) {
    silence(stream, source, error.what());
  }
}

std::int32_t Drafter::room(const Stream& stream, std::int32_t lanes) const {
  const std::int32_t rows = lanes > 1 ? limits_.shared_window_rows : limits_.window_rows;
  return std::max(std::min(rows - 1, stream.draft_room()), 0);
}

// What a preempted stream has said before, and what a rule forces, is known without any source.
void Drafter::begin_window(Stream& stream) {
  stream.drafts.window = {};
  if (stream.prompt_rows_left() > 0) return;
  std::vector<DraftNode> nodes = owed_nodes(stream, room(stream, 2));
  if (nodes.empty() && stream.rule() != nullptr) {
    try {
      nodes = forced_nodes(*stream.rule(), stop_tokens_of(stream), room(stream, 2), limits_.vocabulary_size);
    } catch (const std::exception&) {
      return;  // the rule will say so at the token where a serial run meets it
    }
  }
  if (nodes.empty()) return;
  stream.drafts.window.kind = WindowKind::kForced;
  stream.drafts.window.chances.assign(nodes.size(), 1.0);
  stream.drafts.window.proposal.nodes = std::move(nodes);
}

void Drafter::after_pass(std::vector<FedRows>& fed, std::int32_t lanes, const CostModel& costs) {
  std::erase_if(fed, [](const FedRows& rows) { return rows.stream->drafts.sources.empty(); });
  if (fed.empty()) return;
  const Round round{fed, lanes, costs};
  begin_round(round);
  for (const FedRows& rows : fed) {
    observe(rows, round);
    begin_window(*rows.stream);
  }
  std::vector<std::size_t> models;
  for (std::size_t source = 0; source < sources_.size(); ++source) {
    if (sources_[source]->facts().runs_model) {
      models.push_back(source);
      continue;
    }
    const std::vector<DepthRule::Ask> asks = asks_of(source, round);
    absorb(source, round, asks);
    propose(source, round, asks);
  }
  // What cost nothing to find decides whether a model is asked. All of them absorb before any drafts: room for drafts
  // is made by giving up pages behind the sliding windows, and rows that another has yet to absorb may lie there.
  std::vector<std::vector<DepthRule::Ask>> asks;
  for (const std::size_t source : models) {
    asks.push_back(asks_of(source, round));
    absorb(source, round, asks.back());
  }
  for (std::size_t i = 0; i < models.size(); ++i) propose(models[i], round, asks[i]);
}

DepthRule::Ask Drafter::depth_to_ask(Stream& stream, std::size_t source, const Round& round) {
  const DraftWindow& window = stream.drafts.window;
  if (stream.prompt_rows_left() > 0 || window.kind == WindowKind::kForced) return {};
  const DraftSourceFacts& facts = sources_[source]->facts();
  std::int32_t most = std::min(room(stream, round.lanes), facts.depth_max);
  if (facts.runs_model) most = std::min(most, limits_.shared_window_rows - 1);
  if (most <= 0) return {};
  if (at_random_) return ask_at_random(stream, source, most);
  if (!facts.runs_model) return {most, kAnyRate};
  StreamDrafts::Source& own = stream.drafts.sources[source];
  const DepthRule::Ask best = own.rule.depth_to_ask(most, round.lanes, cost_of(source), round.costs);
  DepthRule::Ask ask = affordable(stream, source, best, round);
  if (ask.depth == 0 || !own.has_rows || own.rows_since_gap < StreamDrafts::kRowsAfterGap) return {};
  if (window_is_as_good(stream, ask, round)) return {};
  if (facts.one_pass) ask.depth = most;
  return ask;
}

DepthRule::Ask Drafter::ask_at_random(Stream& stream, std::size_t source, std::int32_t most) {
  StreamDrafts::Source& own = stream.drafts.sources[source];
  if (sleeps_at_random_ && sources_[source]->facts().runs_model) own.listens = random_() % (own.listens ? 16 : 4) != 0;
  const std::uint64_t kind = random_() % 5;  // none, all, or any
  if (kind == 0 || !own.has_rows || !own.listens) return {};
  return {kind <= 2 ? most : 1 + static_cast<std::int32_t>(random_() % static_cast<unsigned>(most)), kAnyRate};
}

DraftCost Drafter::cost_of(std::size_t source) const {
  const Known& known = known_[source];
  if (sources_[source]->facts().one_pass) return {known.absorb_seconds + known.propose_seconds, 0.0};
  return {known.absorb_seconds, known.propose_seconds};
}

DepthRule::Ask Drafter::affordable(Stream& stream, std::size_t source, DepthRule::Ask ask, const Round& round) {
  StreamDrafts::Source& own = stream.drafts.sources[source];
  own.pays = ask.depth > 0 && own.account.balance() >= 0.0;
  if (!own.pays) {
    // Never twice in a row in vain: what a plain pass takes, against which all is reckoned, must go on being measured.
    if (std::exchange(own.missed, false)) return {};
    // A try: dear as it is when it misses. One that lands pays for the next.
    const DraftCost cost = cost_of(source);
    const double gap_seconds = StreamDrafts::kRowsAfterGap * known_[source].listen_seconds;
    double price = cost.fixed_seconds + cost.seconds_per_level + round.rows_seconds(1);
    if (!own.listens) price += gap_seconds;
    price = std::min(price, own.account.most_seconds());  // measured in a slow moment it mustn't be out of reach for ever
    if (affordable_seconds(stream, source) < price) {
      own.listens = false;
      own.rows_since_gap = 0;
      return {};
    }
    ask.depth = 1;
  }
  own.listens = true;
  return ask;
}

bool Drafter::window_is_as_good(const Stream& stream, const DepthRule::Ask& ask, const Round& round) const {
  const DraftWindow& window = stream.drafts.window;
  return window.kind == WindowKind::kDrafted &&
         best_token_rate(window.chances, round.lanes, round.costs) >= ask.tokens_per_second;
}

std::vector<DepthRule::Ask> Drafter::asks_of(std::size_t source, const Round& round) {
  std::vector<DepthRule::Ask> asks;
  for (const FedRows& fed : round.fed) {
    const bool is_open = fed.stream->drafts.sources[source].state != nullptr;
    asks.push_back(is_open ? depth_to_ask(*fed.stream, source, round) : DepthRule::Ask{});
  }
  return asks;
}

void Drafter::absorb(std::size_t source, const Round& round, const std::vector<DepthRule::Ask>& asks) {
  std::vector<DraftAbsorb> batch;
  std::vector<Stream*> streams;
  for (std::size_t i = 0; i < round.fed.size(); ++i) {
    Stream& stream = *round.fed[i].stream;
    const StreamDrafts::Source& own = stream.drafts.sources[source];
    if (own.state == nullptr || !own.has_rows || !own.listens) continue;
    batch.push_back({view(stream, source), round.fed[i].rows, asks[i].depth > 0, {}});
    streams.push_back(&stream);
  }
  if (batch.empty()) return;
  const Clock::time_point start = Clock::now();
  try {
    sources_[source]->absorb(batch);
  } catch (const std::exception& error) {
    for (Stream* stream : streams) silence(*stream, source, error.what());
    return;
  }
  note_absorbed(source, streams, batch, seconds_since(start));
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (!batch[i].failure.empty()) silence(*streams[i], source, batch[i].failure);
  }
}

void Drafter::note_absorbed(std::size_t source, const std::vector<Stream*>& streams,
                            const std::vector<DraftAbsorb>& batch, double seconds) {
  if (!sources_[source]->facts().runs_model) return;
  // A prompt is absorbed whether or not drafts follow, and says nothing about later rounds.
  std::int32_t asked = 0;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (is_at_prompt(*streams[i])) return;
    if (batch[i].wants_proposal) ++asked;
  }
  Known& known = known_[source];
  if (asked > 0) {
    update(known.absorb_seconds, seconds);
  } else {
    update(known.listen_seconds, seconds / static_cast<double>(batch.size()));
  }
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (batch[i].wants_proposal) {
      charge(*streams[i], source, known.absorb_seconds / asked);
    } else if (!streams[i]->drafts.sources[source].pays) {
      charge(*streams[i], source, known.listen_seconds);
    }
  }
}

void Drafter::propose(std::size_t source, const Round& round, const std::vector<DepthRule::Ask>& asks) {
  const DraftSourceFacts& facts = sources_[source]->facts();
  std::vector<DraftRequest> batch;
  std::vector<Stream*> streams;
  std::int32_t deepest = 0;
  for (std::size_t i = 0; i < round.fed.size(); ++i) {
    Stream& stream = *round.fed[i].stream;
    if (asks[i].depth == 0 || stream.drafts.sources[source].state == nullptr) continue;
    if (window_is_as_good(stream, asks[i], round)) continue;  // another model's, since it was asked
    if (facts.runs_model) stream.cache().prepare(stream.fed(), 1 + asks[i].depth);
    DraftRequest request;
    request.stream = view(stream, source);
    request.depth_max = asks[i].depth;
    const std::int32_t nodes_max = std::min(facts.nodes_max, limits_.shared_window_rows - 1);
    request.nodes_max = std::max(asks[i].depth, nodes_max);
    request.trees = nodes_max < limits::kTreeRowsMax;
    batch.push_back(std::move(request));
    streams.push_back(&stream);
    deepest = std::max(deepest, asks[i].depth);
  }
  if (batch.empty()) return;
  const Clock::time_point start = Clock::now();
  try {
    sources_[source]->propose(batch);
  } catch (const std::exception& error) {
    for (Stream* stream : streams) silence(*stream, source, error.what());
    return;
  }
  const std::int32_t levels = facts.one_pass ? 1 : deepest;
  update(known_[source].propose_seconds, seconds_since(start) / levels);
  if (facts.runs_model) {
    const double seconds = levels * known_[source].propose_seconds / static_cast<double>(batch.size());
    for (Stream* stream : streams) charge(*stream, source, seconds);
  }
  for (std::size_t i = 0; i < batch.size(); ++i) {
    std::string failure = std::move(batch[i].failure);
    if (failure.empty()) failure = proposal_fault(batch[i], limits_.vocabulary_size);
    if (!failure.empty()) {
      silence(*streams[i], source, failure);
    } else {
      take(source, *streams[i], std::move(batch[i].proposal), round);
    }
  }
}

// Keeps the better of the window so far and this proposal.
void Drafter::take(std::size_t source, Stream& stream, DraftProposal proposal, const Round& round) {
  cut_proposal(proposal.nodes, stream.rule(), stop_tokens_of(stream), limits_.vocabulary_size);
  if (proposal.nodes.empty()) return;
  DraftWindow& window = stream.drafts.window;
  std::vector<double> chances = landing_chances(stream.drafts.sources[source].rule, proposal.nodes);
  if (window.kind == WindowKind::kDrafted) {
    const bool keep = at_random_ ? random_() % 2 == 0
                                 : best_token_rate(window.chances, round.lanes, round.costs) >=
                                       best_token_rate(chances, round.lanes, round.costs);
    if (keep) return;
  }
  window = {WindowKind::kDrafted, static_cast<std::int32_t>(source), std::move(proposal), std::move(chances)};
}

}  // namespace tensorfold
