// The numbers that GGUF files use for value types and tensor types, as tables (formats.md section 14). Apart from the
// reader so that a new block type is one line here and one decoder, not a change of the parser.
#pragma once

#include <cstdint>
#include <string_view>

namespace tensorfold {

enum class GgufValueType : std::uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

/// Bytes of a fixed-size value; 0 for strings, arrays and unknown types.
std::size_t gguf_value_bytes(GgufValueType type);

struct GgufTensorType {
  std::uint32_t id;
  std::string_view name;
  std::uint32_t block_elements;
  std::uint32_t block_bytes;  // 0: a type that exists but isn't supported
};

/// nullptr for an id that no GGUF file should have.
const GgufTensorType* gguf_tensor_type(std::uint32_t id);
/// The same by name ("Q4_0"); nullptr for one that doesn't exist.
const GgufTensorType* gguf_tensor_type(std::string_view name);

}  // namespace tensorfold
