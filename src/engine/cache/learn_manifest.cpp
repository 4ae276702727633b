// See learn_manifest.h.
#include "engine/cache/learn_manifest.h"

#include <algorithm>
#include <cstring>

#include "base/crc32.h"
#include "base/error.h"
#include "base/limits.h"
#include "engine/cache/byte_codec.h"

namespace tensorfold {
namespace {

constexpr char kMagic[kManifestMagicBytes] = {'T', 'F', 'L', 'E', 'A', 'R', 'N', 1};
constexpr std::size_t kRecordPrefixBytes = 8;
enum RecordType : std::uint8_t { kAdded = 1, kRemoved = 2, kUsed = 3, kDay = 4 };

std::vector<std::byte> record(ByteWriter& body) {
  ByteWriter whole;
  whole.number(static_cast<std::uint32_t>(body.bytes().size()));
  whole.number(crc32(body.bytes().data(), body.bytes().size()));
  std::vector<std::byte>& bytes = whole.bytes();
  bytes.insert(bytes.end(), body.bytes().begin(), body.bytes().end());
  return std::move(bytes);
}

StoredState read_added(ByteReader& reader) {
  StoredState state;
  state.id = reader.number<std::uint64_t>();
  state.parent = reader.number<std::uint64_t>();
  state.begin = reader.number<std::uint32_t>();
  state.end = reader.number<std::uint32_t>();
  state.resume_point = reader.number<std::uint8_t>() != 0;
  state.file_bytes = reader.number<std::uint64_t>();
  state.last_use = reader.number<std::uint64_t>();
  const auto identity_bytes = reader.number<std::uint32_t>();
  const auto scope_bytes = reader.number<std::uint32_t>();
  state.identity = reader.text(identity_bytes);
  state.scope = reader.text(scope_bytes);
  const bool possible = state.id != 0 && state.begin < state.end && state.end <= limits::kContextTokensMax &&
                        state.begin % limits::kKvPageTokens == 0 && (state.parent == 0) == (state.begin == 0);
  if (!possible) fail(ErrorCode::kInvalidCheckpoint, "an impossible record");
  state.tokens = reader.tokens(state.end - state.begin);
  return state;
}

void apply(ByteReader& reader, ManifestContent& content) {
  switch (reader.number<std::uint8_t>()) {
    case kAdded: {
      StoredState state = read_added(reader);
      // A child needs its parent's tokens up to where it begins.
      const auto parent = content.states.find(state.parent);
      const bool has_parent =
          state.parent == 0 ||
          (parent != content.states.end() && parent->second.begin < state.begin && parent->second.end >= state.begin);
      content.next_id = std::max(content.next_id, state.id + 1);
      content.next_use = std::max(content.next_use, state.last_use + 1);
      if (has_parent) content.states[state.id] = std::move(state);
      break;
    }
    case kRemoved:
      content.states.erase(reader.number<std::uint64_t>());
      break;
    case kUsed: {
      const auto found = content.states.find(reader.number<std::uint64_t>());
      const auto use = reader.number<std::uint64_t>();
      if (found != content.states.end()) found->second.last_use = use;
      content.next_use = std::max(content.next_use, use + 1);
      break;
    }
    case kDay: {
      content.day = reader.number<std::uint32_t>();
      content.day_bytes = reader.number<std::uint64_t>();
      break;
    }
    default:
      fail(ErrorCode::kInvalidCheckpoint, "an unknown record");
  }
  if (reader.left() != 0) fail(ErrorCode::kInvalidCheckpoint, "a record with more than it should have");
}

/// Removing a parent before its child can't happen in a whole log; a child left alone all the same is of no use.
void drop_orphans(ManifestContent& content) {
  for (auto state = content.states.begin(); state != content.states.end();) {
    const bool orphan = state->second.parent != 0 && content.states.count(state->second.parent) == 0;
    if (!orphan) {
      ++state;
      continue;
    }
    content.states.erase(state);
    state = content.states.begin();
  }
}

}  // namespace

std::vector<std::byte> manifest_magic() {
  const auto* bytes = reinterpret_cast<const std::byte*>(kMagic);
  return {bytes, bytes + sizeof(kMagic)};
}

std::vector<std::byte> encode_added(const StoredState& state) {
  ByteWriter body;
  body.number(static_cast<std::uint8_t>(kAdded));
  body.number(state.id);
  body.number(state.parent);
  body.number(state.begin);
  body.number(state.end);
  body.number(static_cast<std::uint8_t>(state.resume_point ? 1 : 0));
  body.number(state.file_bytes);
  body.number(state.last_use);
  body.number(static_cast<std::uint32_t>(state.identity.size()));
  body.number(static_cast<std::uint32_t>(state.scope.size()));
  body.text(state.identity);
  body.text(state.scope);
  body.tokens(state.tokens);
  return record(body);
}

std::vector<std::byte> encode_removed(std::uint64_t id) {
  ByteWriter body;
  body.number(static_cast<std::uint8_t>(kRemoved));
  body.number(id);
  return record(body);
}

std::vector<std::byte> encode_used(std::uint64_t id, std::uint64_t use) {
  ByteWriter body;
  body.number(static_cast<std::uint8_t>(kUsed));
  body.number(id);
  body.number(use);
  return record(body);
}

std::vector<std::byte> encode_day(std::uint32_t day, std::uint64_t bytes) {
  ByteWriter body;
  body.number(static_cast<std::uint8_t>(kDay));
  body.number(day);
  body.number(bytes);
  return record(body);
}

ManifestContent decode_manifest(std::span<const std::byte> bytes) {
  ManifestContent content;
  if (bytes.size() < sizeof(kMagic)) return content;  // torn at birth
  if (std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) != 0) {
    fail(ErrorCode::kUnsupported, "its manifest is of another version");
  }
  content.valid_bytes = sizeof(kMagic);
  std::size_t at = sizeof(kMagic);
  while (bytes.size() - at >= kRecordPrefixBytes) {
    ByteReader prefix(bytes.subspan(at, kRecordPrefixBytes));
    const auto size = prefix.number<std::uint32_t>();
    const auto check = prefix.number<std::uint32_t>();
    if (size == 0 || size > bytes.size() - at - kRecordPrefixBytes) break;
    const std::span<const std::byte> body = bytes.subspan(at + kRecordPrefixBytes, size);
    if (crc32(body.data(), body.size()) != check) break;
    try {
      ByteReader reader(body);
      apply(reader, content);
    } catch (const Error&) {
      break;
    }
    at += kRecordPrefixBytes + size;
    content.valid_bytes = at;
  }
  drop_orphans(content);
  return content;
}

}  // namespace tensorfold
