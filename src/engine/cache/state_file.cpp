// The state file's header (see state_file.h).
#include "engine/cache/state_file.h"

#include <algorithm>
#include <cstring>

#include "base/crc32.h"
#include "base/error.h"
#include "base/limits.h"
#include "engine/cache/byte_codec.h"

namespace tensorfold {
namespace {

constexpr char kMagic[8] = {'T', 'F', 'S', 'T', 'A', 'T', 'E', 1};
constexpr std::uint32_t kPageTokens = limits::kKvPageTokens;

void require(bool condition, const char* problem) {
  if (!condition) fail(ErrorCode::kInvalidCheckpoint, "{}", problem);
}

}  // namespace

std::uint64_t StateHeader::page_count() const {
  std::uint64_t count = 0;
  for (const StateGroup& group : groups) count += group.blocks;
  return count;
}

std::uint64_t StateHeader::payload_bytes() const {
  std::uint64_t bytes = snapshot_bytes;
  for (const StateGroup& group : groups) bytes += group.blocks * group.page_bytes;
  return bytes;
}

std::uint64_t StateHeader::page_offset(std::size_t group, std::uint32_t block) const {
  std::uint64_t offset = 0;
  for (std::size_t g = 0; g < group; ++g) offset += groups[g].blocks * groups[g].page_bytes;
  TF_ASSERT(block >= groups[group].first_block && block - groups[group].first_block < groups[group].blocks);
  return offset + (block - groups[group].first_block) * groups[group].page_bytes;
}

std::size_t StateHeader::page_index(std::size_t group, std::uint32_t block) const {
  std::size_t index = block - groups[group].first_block;
  for (std::size_t g = 0; g < group; ++g) index += groups[g].blocks;
  return index;
}

std::vector<std::byte> encode_state_header(const StateHeader& header) {
  ByteWriter writer;
  writer.text(std::string(kMagic, sizeof(kMagic)));
  writer.number(std::uint32_t{0});
  writer.number(std::uint32_t{0});
  writer.number(header.id);
  writer.number(header.parent);
  writer.number(header.begin);
  writer.number(header.end);
  writer.number(header.snapshot_bytes);
  writer.number(static_cast<std::uint32_t>(header.identity.size()));
  writer.number(static_cast<std::uint32_t>(header.scope.size()));
  writer.number(static_cast<std::uint32_t>(header.groups.size()));
  writer.number(std::uint32_t{0});
  writer.text(header.identity);
  writer.text(header.scope);
  writer.tokens(header.tokens);
  for (const StateGroup& group : header.groups) {
    writer.number(group.first_block);
    writer.number(group.blocks);
    writer.number(group.page_bytes);
  }
  for (const std::uint32_t check : header.checks) writer.number(check);
  std::vector<std::byte>& bytes = writer.bytes();
  TF_ASSERT(bytes.size() <= limits::kStateHeaderBytesMax);
  ByteWriter sizes;
  sizes.number(static_cast<std::uint32_t>(bytes.size()));
  sizes.number(crc32(bytes.data() + kStateFilePrefixBytes, bytes.size() - kStateFilePrefixBytes));
  std::copy(sizes.bytes().begin(), sizes.bytes().end(), bytes.begin() + sizeof(kMagic));
  return std::move(bytes);
}

std::size_t state_header_bytes(std::span<const std::byte> prefix) {
  require(prefix.size() >= kStateFilePrefixBytes, "it ends too early");
  require(std::memcmp(prefix.data(), kMagic, sizeof(kMagic)) == 0, "it isn't a state of this version");
  const auto bytes = ByteReader(prefix.subspan(sizeof(kMagic))).number<std::uint32_t>();
  require(bytes > kStateFilePrefixBytes && bytes <= limits::kStateHeaderBytesMax, "its header has an impossible size");
  return bytes;
}

StateHeader decode_state_header(std::span<const std::byte> bytes, std::uint64_t file_bytes) {
  const std::size_t header_bytes = state_header_bytes(bytes);
  require(header_bytes == bytes.size() && header_bytes <= file_bytes, "its header has an impossible size");
  ByteReader prefix(bytes.subspan(sizeof(kMagic) + sizeof(std::uint32_t)));
  const auto check = prefix.number<std::uint32_t>();
  require(crc32(bytes.data() + kStateFilePrefixBytes, bytes.size() - kStateFilePrefixBytes) == check,
          "its header's checksum is wrong");
  ByteReader reader(bytes.subspan(kStateFilePrefixBytes));
  StateHeader header;
  header.id = reader.number<std::uint64_t>();
  header.parent = reader.number<std::uint64_t>();
  header.begin = reader.number<std::uint32_t>();
  header.end = reader.number<std::uint32_t>();
  header.snapshot_bytes = reader.number<std::uint64_t>();
  const auto identity_bytes = reader.number<std::uint32_t>();
  const auto scope_bytes = reader.number<std::uint32_t>();
  const auto groups = reader.number<std::uint32_t>();
  require(reader.number<std::uint32_t>() == 0, "it has fields of a later version");
  require(header.id != 0 && header.id != header.parent, "its id is impossible");
  require(header.begin % kPageTokens == 0 && header.begin < header.end && header.end <= limits::kContextTokensMax,
          "its range of tokens is impossible");
  require((header.parent == 0) == (header.begin == 0), "its parent and its range of tokens disagree");
  require(identity_bytes <= limits::kStateNameBytesMax && scope_bytes <= limits::kStateNameBytesMax &&
              groups <= limits::kStateGroupsMax,
          "its identity is too long");
  header.identity = reader.text(identity_bytes);
  header.scope = reader.text(scope_bytes);
  header.tokens = reader.tokens(header.end - header.begin);
  const std::uint32_t last_block = (header.end - 1) / kPageTokens;
  std::uint64_t payload = header.snapshot_bytes;
  require(payload <= file_bytes, "its snapshot is larger than the file");
  for (std::uint32_t g = 0; g < groups; ++g) {
    StateGroup group;
    group.first_block = reader.number<std::uint32_t>();
    group.blocks = reader.number<std::uint32_t>();
    group.page_bytes = reader.number<std::uint64_t>();
    require(group.page_bytes <= file_bytes && group.blocks <= last_block + 1, "its pages are larger than the file");
    require(
        group.blocks == 0 || (group.first_block <= last_block && group.blocks == last_block - group.first_block + 1),
        "its pages don't end with its tokens");
    require(group.page_bytes == 0 || group.blocks <= (file_bytes - payload) / group.page_bytes,
            "its pages are larger than the file");
    payload += group.blocks * group.page_bytes;
    header.groups.push_back(group);
  }
  const std::uint64_t checks = header.page_count() + (header.snapshot_bytes > 0 ? 1 : 0);
  require(reader.left() == checks * sizeof(std::uint32_t), "it has another number of checksums than of pages");
  for (std::uint64_t i = 0; i < checks; ++i) header.checks.push_back(reader.number<std::uint32_t>());
  require(payload == file_bytes - header_bytes, "the file has another size than its header says");
  return header;
}

}  // namespace tensorfold
