// Planning a conversion from a GGUF file: llama.cpp's names and conventions turned back into those of Hugging Face
// directories. Apart from plan.cpp because everything in it undoes one other program's converter.
#pragma once

#include "convert/plan.h"

namespace tensorfold {

/// Fills matrices, vectors, skipped and config of `plan`, whose checkpoint is a GGUF file. Throws Error(kUnsupported)
/// for an architecture or a tensor that can't be expressed.
void plan_gguf(ConversionPlan& plan, QuantisationRules& rules);

}  // namespace tensorfold
