#include "checkpoint/gguf_types.h"

namespace tensorfold {
namespace {

constexpr GgufTensorType kTypes[] = {
    {0, "F32", 1, 4},        {1, "F16", 1, 2},       {2, "Q4_0", 32, 18},     {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22},     {7, "Q5_1", 32, 24},    {8, "Q8_0", 32, 34},     {9, "Q8_1", 32, 0},
    {10, "Q2_K", 256, 0},    {11, "Q3_K", 256, 0},   {12, "Q4_K", 256, 144},  {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},  {15, "Q8_K", 256, 0},   {16, "IQ2_XXS", 256, 0}, {17, "IQ2_XS", 256, 0},
    {18, "IQ3_XXS", 256, 0}, {19, "IQ1_S", 256, 0},  {20, "IQ4_NL", 32, 0},   {21, "IQ3_S", 256, 0},
    {22, "IQ2_S", 256, 0},   {23, "IQ4_XS", 256, 0}, {24, "I8", 1, 1},        {25, "I16", 1, 2},
    {26, "I32", 1, 4},       {27, "I64", 1, 8},      {28, "F64", 1, 8},       {29, "IQ1_M", 256, 0},
    {30, "BF16", 1, 2},      {34, "TQ1_0", 256, 0},  {35, "TQ2_0", 256, 0},   {39, "MXFP4", 32, 0},
};

}  // namespace

std::size_t gguf_value_bytes(GgufValueType type) {
  switch (type) {
    case GgufValueType::kU8:
    case GgufValueType::kI8:
    case GgufValueType::kBool:
      return 1;
    case GgufValueType::kU16:
    case GgufValueType::kI16:
      return 2;
    case GgufValueType::kU32:
    case GgufValueType::kI32:
    case GgufValueType::kF32:
      return 4;
    case GgufValueType::kU64:
    case GgufValueType::kI64:
    case GgufValueType::kF64:
      return 8;
    case GgufValueType::kString:
    case GgufValueType::kArray:
      return 0;
  }
  return 0;
}

const GgufTensorType* gguf_tensor_type(std::uint32_t id) {
  for (const GgufTensorType& type : kTypes) {
    if (type.id == id) return &type;
  }
  return nullptr;
}

const GgufTensorType* gguf_tensor_type(std::string_view name) {
  for (const GgufTensorType& type : kTypes) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

}  // namespace tensorfold
