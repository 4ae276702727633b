// A checkpoint's name for itself: what states on disk are filed under, so that a state of other weights is never taken
// for its own.
#pragma once

#include <string>

#include "checkpoint/checkpoint.h"

namespace tensorfold {

/// 32 hex digits over the configuration, the table of tensors (name, dtype, shape, size) and their contents: small
/// tensors whole, of larger ones sixteen blocks of 4 KiB spread evenly, first and last included. Reading all of a large
/// checkpoint would cost seconds at each start; training and merging change every block of a tensor they touch. It
/// isn't a defence against somebody who builds two checkpoints to collide.
std::string checkpoint_id(const Checkpoint& checkpoint);

}  // namespace tensorfold
