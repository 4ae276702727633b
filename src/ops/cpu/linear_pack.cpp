// From a checkpoint's matrix to panels (linear_layout.h): checks of the source, layout, and the copy, in parallel over
// panels. Runs at load only.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/stored_numbers.h"
#include "ops/cpu/linear.h"
#include "ops/cpu/pack_panel.h"
#include "ops/linear_source.h"

namespace tensorfold::ops::cpu {
namespace {

// Below this, a product of a code and a scale could round differently where denormals are flushed: fp32's smallest
// normal number is 2^-126, and the last bit of a scale lies 23 places below its first. A scale may also be divided by up to
// 2^28 for codes that stay where they lie in a dword (linear_kernels.h).
constexpr float kSmallestPlainScale = 0x1p-96f;

std::size_t checked_multiply(std::size_t a, std::size_t b, const std::string& name) {
  std::size_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: the matrix is larger than memory can be", name);
  }
  return product;
}

int scale_group_bytes(ScaleKind kind) {
  switch (kind) {
    case ScaleKind::kPairF32:
      return 128;
    case ScaleKind::kPairF16:
    case ScaleKind::kPairBf16:
      return 64;
    case ScaleKind::kOffset:
      return 32;
    case ScaleKind::kSuper4:
      return 256;
    case ScaleKind::kSuper6:
      return 288;
    case ScaleKind::kNone:
      break;
  }
  return 0;
}

void choose_scales(const WeightView& view, PanelLayout& layout) {
  const auto set = [&](int bits, ScaleKind kind, int group_blocks, float offset) {
    layout.bits = bits;
    layout.scale_kind = kind;
    layout.group_blocks = group_blocks;
    layout.offset = offset;
  };
  switch (view.format) {
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
      return set(kBf16Bits, ScaleKind::kNone, 1, 0.0f);
    case WeightFormat::kAffine:
      return set(view.bits,
                 view.scale_format == WeightFormat::kF32   ? ScaleKind::kPairF32
                 : view.scale_format == WeightFormat::kF16 ? ScaleKind::kPairF16
                                                           : ScaleKind::kPairBf16,
                 view.group_size / kBlockColumns, 0.0f);
    case WeightFormat::kQ4_0:
      return set(4, ScaleKind::kOffset, 1, 8.0f);
    case WeightFormat::kQ4_1:
      return set(4, ScaleKind::kPairF16, 1, 0.0f);
    case WeightFormat::kQ5_0:
      return set(5, ScaleKind::kOffset, 1, 16.0f);
    case WeightFormat::kQ5_1:
      return set(5, ScaleKind::kPairF16, 1, 0.0f);
    case WeightFormat::kQ8_0:
      return set(8, ScaleKind::kOffset, 1, 128.0f);
    case WeightFormat::kQ4_K:
      return set(4, ScaleKind::kSuper4, 8, 0.0f);
    case WeightFormat::kQ5_K:
      return set(5, ScaleKind::kSuper4, 8, 0.0f);
    case WeightFormat::kQ6_K:
      return set(6, ScaleKind::kSuper6, 8, 32.0f);
  }
}

PanelLayout make_layout(const WeightView& view, CpuPath path) {
  PanelLayout layout;
  layout.code_order = path == CpuPath::kAmx ? CodeOrder::kTiles : CodeOrder::kRowLanes;
  choose_scales(view, layout);
  layout.blocks = (view.columns + kBlockColumns - 1) / kBlockColumns;
  layout.codes_bytes = layout.blocks * 64 * layout.bits;
  layout.group_bytes = scale_group_bytes(layout.scale_kind);
  const std::int64_t scales = layout.blocks / layout.group_blocks * layout.group_bytes;
  const std::int64_t bytes = layout.codes_bytes + scales;
  layout.panel_bytes = (bytes + 63) / 64 * 64;
  return layout;
}

// --- one panel
// --------------------------------------------------------------------------------------------------------

void put(std::uint8_t* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}

float pair_value(ScaleKind kind, const std::byte* from, std::uint32_t& bits) {
  std::memcpy(&bits, from, kind == ScaleKind::kPairF32 ? 4 : 2);
  if (kind == ScaleKind::kPairF16) return half_to_float(static_cast<std::uint16_t>(bits));
  if (kind == ScaleKind::kPairBf16) return to_float(Bf16{static_cast<std::uint16_t>(bits)});
  // A NaN whose payload is all ones would be rounded away by integers.
  if ((bits & 0x7fffffffu) > 0x7f800000u) bits = 0x7fc00000u;
  return std::bit_cast<float>(bits);
}

// Affine scales and biases of one row. Returns whether one of them needs the default denormal mode.
bool pack_affine_scales(const WeightView& view, const PanelLayout& layout, std::int64_t stored_row, int lane,
                        std::uint8_t* scales) {
  const std::int64_t groups = view.columns / view.group_size;
  const std::size_t size = layout.scale_kind == ScaleKind::kPairF32 ? 4 : 2;
  bool tiny = false;
  for (std::int64_t group = 0; group < groups; ++group) {
    std::uint8_t* to = scales + group * scale_group_bytes(layout.scale_kind) + lane * static_cast<int>(size);
    const std::size_t offset = static_cast<std::size_t>(stored_row * groups + group) * size;
    for (const std::byte* values : {view.scales, view.biases}) {
      std::uint32_t bits = 0;
      const float value = std::fabs(pair_value(layout.scale_kind, values + offset, bits));
      if ((std::bit_cast<std::uint32_t>(value) != 0) && value < kSmallestPlainScale) tiny = true;
      put(to, &bits, size);
      to += kPanelRows * size;
    }
  }
  return tiny;
}

// Block scales of one row of a GGUF format.
void pack_block_scales(const WeightView& view, const std::byte* row, int lane, std::uint8_t* scales) {
  const BlockShape shape = weight_format_block(view.format);
  const std::size_t at = 2 * static_cast<std::size_t>(lane);
  for (std::int64_t k = 0; k < view.columns; k += shape.elements, row += shape.bytes) {
    switch (view.format) {
      case WeightFormat::kQ4_1:
      case WeightFormat::kQ5_1:
        put(scales + at, row, 2);
        put(scales + 32 + at, row + 2, 2);
        scales += 64;
        break;
      case WeightFormat::kQ4_K:
      case WeightFormat::kQ5_K:
        put(scales + at, row, 2);
        put(scales + 32 + at, row + 2, 2);
        for (std::size_t i = 0; i < 3; ++i) put(scales + 64 + 64 * i + 2 * at, row + 4 + 4 * i, 4);
        scales += 256;
        break;
      case WeightFormat::kQ6_K:
        put(scales + at, row + 208, 2);
        for (std::size_t i = 0; i < 16; ++i) put(scales + 32 + 16 * i + at / 2, row + 192 + i, 1);
        scales += 288;
        break;
      default:  // Q4_0, Q5_0, Q8_0
        put(scales + at, row, 2);
        scales += 32;
    }
  }
}

// Returns whether the panel needs the default denormal mode.
bool pack_panel(const WeightView& view, const PanelLayout& layout, const std::vector<std::int32_t>* order,
                std::int64_t expert, std::int64_t panel, std::uint8_t* to) {
  const std::int64_t row_bytes = stored_row_bytes(view);
  const std::size_t padded = static_cast<std::size_t>(layout.blocks * kBlockColumns);
  std::vector<std::uint16_t> values(layout.bits == kBf16Bits ? padded : 0);
  std::vector<std::uint8_t> codes(layout.bits == kBf16Bits ? 0 : padded);
  bool tiny = false;
  const std::int64_t last = std::min<std::int64_t>(kPanelRows, view.rows - panel * kPanelRows);
  for (int lane = 0; lane < last; ++lane) {
    const std::int64_t logical = panel * kPanelRows + lane;
    const std::int64_t in_part = order == nullptr ? logical : (*order)[static_cast<std::size_t>(logical)];
    const std::int64_t stored = expert * view.rows + in_part;
    const std::byte* row = view.data + stored * row_bytes;
    if (layout.bits == kBf16Bits) {
      read_bf16(view, row, values.data());
      place_bf16(layout, values.data(), lane, to);
      continue;
    }
    read_codes(view, row, codes.data());
    place_codes(layout, codes.data(), lane, to);
    if (view.format == WeightFormat::kAffine) {
      tiny |= pack_affine_scales(view, layout, stored, lane, to + layout.codes_bytes);
    } else {
      pack_block_scales(view, row, lane, to + layout.codes_bytes);
    }
  }
  return tiny;
}

HostPages take_storage(std::size_t bytes) {
  try {
    return HostPages(bytes);
  } catch (const std::bad_alloc&) {
    fail(ErrorCode::kResourceExhausted, "can't allocate {} bytes for packed weights; free memory or use a smaller model", bytes);
  }
}

PackedPart pack_part(const WeightView& view, const std::vector<std::int32_t>* order, CpuPath path, ThreadPool& pool) {
  PackedPart part;
  part.layout = make_layout(view, path);
  part.rows = view.rows;
  part.panels = (view.rows + kPanelRows - 1) / kPanelRows;
  const std::size_t panels = static_cast<std::size_t>(view.experts * part.panels);
  part.storage = take_storage(checked_multiply(panels, static_cast<std::size_t>(part.layout.panel_bytes), view.name));
  std::atomic<bool> tiny{false};
  pool.parallel_for(static_cast<std::int64_t>(panels), [&](std::int64_t panel, int) {
    std::uint8_t* to = part.data() + panel * part.layout.panel_bytes;
    if (pack_panel(view, part.layout, order, panel / part.panels, panel % part.panels, to)) tiny.store(true);
  });
  part.decode_in_default_mode = tiny.load();
  return part;
}

}  // namespace

std::size_t CpuLinear::packed_bytes() const {
  std::size_t bytes = bias_.size() * sizeof(float);
  for (const PackedPart& part : parts_) bytes += part.storage.size();
  return bytes;
}

std::unique_ptr<CpuLinear> pack_linear(const LinearSource& source, CpuPath path, ThreadPool& pool) {
  check_linear_source(source);
  auto result = std::make_unique<CpuLinear>();
  result->path_ = path;
  result->columns_ = source.parts.front().columns;
  result->experts_ = source.parts.front().experts;
  for (std::size_t i = 0; i < source.parts.size(); ++i) {
    const bool ordered = i < source.row_orders.size() && !source.row_orders[i].empty();
    PackedPart part = pack_part(source.parts[i], ordered ? &source.row_orders[i] : nullptr, path, pool);
    part.first_row = result->rows_;
    result->rows_ += part.rows;
    result->parts_.push_back(std::move(part));
  }
  // A bias row for every lane of the last panel isn't needed: kernels read only the rows that exist.
  result->bias_ = source.bias;
  return result;
}

}  // namespace tensorfold::ops::cpu
