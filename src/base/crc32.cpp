// See crc32.h: libdeflate's, which uses what the processor has for it.
#include "base/crc32.h"

#include <libdeflate.h>

namespace tensorfold {

std::uint32_t crc32(const void* bytes, std::size_t size, std::uint32_t seed) {
  return size == 0 ? seed : libdeflate_crc32(seed, bytes, size);  // which takes null for "begin"
}

}  // namespace tensorfold
