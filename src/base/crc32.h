// CRC-32 (the polynomial of zlib and PNG, reflected) of bytes that were written to disk. It tells a torn or rotten file
// from a whole one; it is no defence against an adversary, and nothing that decides a token rests on it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorfold {

/// CRC of `size` bytes; `seed` is the CRC of what came before (0 at the start).
std::uint32_t crc32(const void* bytes, std::size_t size, std::uint32_t seed = 0);

}  // namespace tensorfold
