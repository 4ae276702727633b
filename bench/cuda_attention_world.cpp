// See cuda_attention_world.h.
#include "cuda_attention_world.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "ops/cuda/attention/page_layout.h"
#include "ops/row_tree.h"

namespace tensorfold::ops::cuda::bench {
namespace {

constexpr int kRowsMax = 2048;

float bf16_rounded(double value) {
  const auto single = static_cast<float>(value);
  std::uint32_t bits;
  std::memcpy(&bits, &single, 4);
  bits = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u;
  float rounded;
  std::memcpy(&rounded, &bits, 4);
  return rounded;
}

}  // namespace

float AttentionShape::scale() const { return 4.0f / std::sqrt(static_cast<float>(head_dim)); }

World::World(BenchContext& context, const AttentionShape& shape, int lanes, int length)
    : context_(context), shape_(shape), length_(length), lanes_(lanes) {
  page_bytes_ = kv_page_bytes({shape.kv_heads, shape.head_dim});
  tree_bytes_ = kv_tree_bytes({shape.kv_heads, shape.head_dim}) + 64;
  const int per_lane = length / kTileKeys + 1;
  const auto count = static_cast<std::size_t>(lanes) * static_cast<std::size_t>(per_lane) + 1;
  pages_ = DeviceArray<std::byte>(count * page_bytes_);
  pages_.fill(0xff);
  trees_ = DeviceArray<std::byte>(static_cast<std::size_t>(lanes + 1) * tree_bytes_);
  trees_.fill(0xff);
  std::vector<std::int32_t> order(count - 1);
  std::iota(order.begin(), order.end(), 1);
  std::shuffle(order.begin(), order.end(), std::mt19937(11));
  for (int lane = 0; lane < lanes; ++lane) {
    tables_.emplace_back(order.begin() + lane * per_lane, order.begin() + (lane + 1) * per_lane);
  }
  std::mt19937 random(7);
  const auto draw = [&] { return static_cast<float>(random() >> 8) / 8388608.0f - 1.0f; };
  host_inputs_.resize(static_cast<std::size_t>(kPoolFloats));
  std::generate(host_inputs_.begin(), host_inputs_.end(), draw);
  host_inputs_.resize(host_inputs_.size() + static_cast<std::size_t>(shape.row_floats()), NAN);
  inputs_ = DeviceArray(host_inputs_);
  for (int i = 0; i < shape.head_dim; ++i) {
    q_norm_.push_back(1.0f + draw());
    k_norm_.push_back(1.0f + draw());
  }
  std::vector<float> norms = q_norm_;
  norms.insert(norms.end(), k_norm_.begin(), k_norm_.end());
  device_norms_ = DeviceArray(norms);
  for (int position = 0; position < length; ++position) {
    for (int i = 0; i < shape.rotary_dims / 2; ++i) {
      const double angle = position * std::pow(10000.0, -2.0 * i / shape.rotary_dims);
      cos_sin_.push_back(static_cast<float>(std::cos(angle)));
      cos_sin_.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  device_cos_sin_ = DeviceArray(cos_sin_);
  staged_ = DeviceArray<float>(kRowsMax * shape.row_floats());
  q_ = DeviceArray<std::uint16_t>(kRowsMax * shape.out_elements());
  out_ = DeviceArray<std::uint16_t>(kRowsMax * shape.out_elements());
}

World::~World() {
  cudaStreamSynchronize(context_.stream());
}

AttentionPrepareParams World::prepare_params(const float* qkv, std::int64_t stride, const std::vector<LaneSpan>& spans,
                                             const std::vector<std::int32_t>& positions) const {
  AttentionPrepareParams p;
  p.geometry = {shape_.kv_heads, shape_.head_dim};
  p.heads = shape_.heads;
  p.qkv = qkv;
  p.stride = stride;
  p.q_head_stride = shape_.q_head_stride();
  p.k_offset = shape_.k_offset();
  p.v_offset = shape_.v_offset();
  if (shape_.norms) {
    p.q_norm = device_norms_.data();
    p.k_norm = device_norms_.data() + shape_.head_dim;
  }
  p.epsilon = 1e-6f;
  p.rope = {device_cos_sin_.data(), shape_.rotary_dims, length_};
  p.rope_positions = positions.data();
  p.lanes = spans.data();
  p.lane_count = static_cast<std::int32_t>(spans.size());
  p.pool = pool();
  p.q_out = reinterpret_cast<Activation*>(q_.data());
  return p;
}

void World::fill(int lane, int begin, int end) {
  for (int at = begin; at < end; at += kRowsMax) {
    const int count = std::min(kRowsMax, end - at);
    LaneSpan span;
    span.slot = lane + 1;
    span.row_count = count;
    span.position = at;
    span.pages = tables_[static_cast<std::size_t>(lane)].data();
    std::vector<std::int32_t> positions(static_cast<std::size_t>(count) + 64);
    std::iota(positions.begin(), positions.end(), at);
    attention_prepare(context_, prepare_params(inputs_.data() + source(lane, at), 37, {span}, positions));
  }
}

void World::poison(int lane, int position) {
  const auto& table = tables_[static_cast<std::size_t>(lane)];
  const int blocks = head_blocks(shape_.head_dim);
  context_.synchronise("waiting");
  for (std::size_t page = static_cast<std::size_t>(position / kTileKeys); page < table.size(); ++page) {
    const int key = std::max(0, position - static_cast<int>(page) * kTileKeys);
    for (int block = 0; block < shape_.kv_heads * 2 * blocks; ++block) {
      check(cudaMemsetAsync(pages_.data() + static_cast<std::size_t>(table[page]) * page_bytes_ +
                                static_cast<std::size_t>(block) * kBlockBytes + key * kBlockRowBytes,
                            0xff, static_cast<std::size_t>((kTileKeys - key) * kBlockRowBytes), context_.stream()),
            "poisoning a page");
    }
    if (page > static_cast<std::size_t>(position / kTileKeys) + 6) break;
  }
}

Rows World::run(const std::vector<Step>& steps) {
  std::vector<LaneSpan> spans;
  std::vector<std::int32_t> positions;
  std::int32_t rows = 0;
  for (const Step& step : steps) {
    LaneSpan span;
    span.slot = step.lane + 1;
    span.first_row = rows;
    span.row_count = step.count;
    span.position = step.position;
    span.pages = tables_[static_cast<std::size_t>(step.lane)].data();
    span.mutual = step.mutual;
    span.commits = step.parents.empty();
    if (!step.parents.empty()) span.parents = step.parents.data();
    if (!step.replay_rows.empty()) {
      span.replay_rows = step.replay_rows.data();
      span.replay_count = static_cast<std::int32_t>(step.replay_rows.size());
      span.replay_tree = true;
    }
    for (int i = 0; i < step.count; ++i) {
      const std::int64_t from = step.sources.empty() ? source(step.lane, step.position + i) : step.sources[static_cast<std::size_t>(i)];
      check(cudaMemcpyAsync(staged_.data() + (rows + i) * shape_.row_floats(), inputs_.data() + from,
                            static_cast<std::size_t>(shape_.row_floats()) * sizeof(float), cudaMemcpyDeviceToDevice,
                            context_.stream()),
            "staging a row");
      const int depth = span.parents != nullptr ? row_tree(span).depth[static_cast<std::size_t>(i)] : i;
      positions.push_back(step.position + depth);
    }
    rows += step.count;
    spans.push_back(span);
  }
  TF_ASSERT(rows + context_.padding_rows() <= kRowsMax);
  positions.resize(positions.size() + static_cast<std::size_t>(context_.padding_rows()), 0);
  AttentionReplayParams replay;
  replay.geometry = {shape_.kv_heads, shape_.head_dim};
  replay.pool = pool();
  replay.lanes = spans.data();
  replay.lane_count = static_cast<std::int32_t>(spans.size());
  attention_replay(context_, replay);
  attention_prepare(context_, prepare_params(staged_.data(), shape_.row_floats(), spans, positions));
  AttentionParams p;
  p.geometry = {shape_.kv_heads, shape_.head_dim};
  p.heads = shape_.heads;
  p.q = reinterpret_cast<Activation*>(q_.data());
  p.pool = pool();
  p.lanes = spans.data();
  p.lane_count = static_cast<std::int32_t>(spans.size());
  p.scale = shape_.scale();
  p.window = shape_.window;
  if (shape_.gated) {
    p.gate = staged_.data();
    p.gate_stride = shape_.row_floats();
    p.gate_offset = shape_.head_dim;
    p.gate_head_stride = shape_.q_head_stride();
  }
  p.out = reinterpret_cast<Activation*>(out_.data());
  const auto width = static_cast<std::size_t>(shape_.out_elements());
  const auto count = static_cast<std::size_t>(rows);
  check(cudaMemsetAsync(out_.data(), 0xff, count * width * 2, context_.stream()), "poisoning outputs");
  attention(context_, p);
  std::vector<std::uint16_t> flat(count * width);
  check(cudaMemcpyAsync(flat.data(), out_.data(), flat.size() * 2, cudaMemcpyDeviceToHost, context_.stream()),
        "reading outputs");
  context_.synchronise("running attention");
  Rows result;
  for (std::size_t row = 0; row < count; ++row) {
    result.emplace_back(flat.begin() + static_cast<std::ptrdiff_t>(row * width), flat.begin() + static_cast<std::ptrdiff_t>((row + 1) * width));
  }
  return result;
}

std::vector<double> World::prepared(std::int64_t source, std::int64_t offset, const std::vector<float>& norm, int position,
                                    bool rotate) const {
  const auto width = static_cast<std::size_t>(shape_.head_dim);
  const float* x = host_inputs_.data() + source + offset;
  std::vector<double> v(x, x + width);
  if (!norm.empty()) {
    double sum = 0.0;
    for (const double each : v) sum += each * each;
    const double inverse = 1.0 / std::sqrt(sum / static_cast<double>(width) + 1e-6);
    for (std::size_t i = 0; i < width; ++i) v[i] *= inverse * static_cast<double>(norm[i]);
  }
  const auto half = static_cast<std::size_t>(rotate ? shape_.rotary_dims / 2 : 0);
  for (std::size_t i = 0; i < half; ++i) {
    const std::size_t at = (static_cast<std::size_t>(position) * half + i) * 2;
    const auto cosine = static_cast<double>(cos_sin_[at]), sine = static_cast<double>(cos_sin_[at + 1]);
    const double low = v[i], high = v[i + half];
    v[i] = low * cosine - high * sine;
    v[i + half] = high * cosine + low * sine;
  }
  for (double& each : v) each = static_cast<double>(bf16_rounded(each));
  return v;
}

std::vector<double> World::expected(int lane, int position) const {
  const std::vector<float> none;
  const auto width = static_cast<std::size_t>(shape_.head_dim);
  const int group = shape_.heads / shape_.kv_heads;
  const int first = shape_.window > 0 ? std::max(0, position - shape_.window + 1) : 0;
  std::vector<double> result;
  for (int g = 0; g < shape_.kv_heads; ++g) {
    std::vector<std::vector<double>> keys, values;
    for (int key = first; key <= position; ++key) {
      keys.push_back(prepared(source(lane, key), shape_.k_offset() + g * shape_.head_dim, shape_.norms ? k_norm_ : none, key, true));
      values.push_back(prepared(source(lane, key), shape_.v_offset() + g * shape_.head_dim, none, key, false));
    }
    for (int h = g * group; h < (g + 1) * group; ++h) {
      const auto q = prepared(source(lane, position), h * shape_.q_head_stride(), shape_.norms ? q_norm_ : none, position, true);
      std::vector<double> scores;
      double largest = -1e300, sum = 0.0;
      for (const auto& k : keys) {
        scores.push_back(std::inner_product(q.begin(), q.end(), k.begin(), 0.0) * static_cast<double>(shape_.scale()));
        largest = std::max(largest, scores.back());
      }
      for (double& s : scores) sum += s = std::exp(s - largest);
      for (std::size_t d = 0; d < width; ++d) {
        double y = 0.0;
        for (std::size_t k = 0; k < scores.size(); ++k) y += scores[k] * values[k][d];
        y /= sum;
        if (shape_.gated) {
          const float gate = host_inputs_[static_cast<std::size_t>(source(lane, position) + h * shape_.q_head_stride() + shape_.head_dim) + d];
          y /= 1.0 + std::exp(-static_cast<double>(gate));
        }
        result.push_back(y);
      }
    }
  }
  return result;
}

}  // namespace tensorfold::ops::cuda::bench
