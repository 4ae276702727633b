// Rows of the last pass that stay in backend memory for drafters: final-normed hidden states for the MTP head, tapped
// residuals for a block drafter. The next pass replaces them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/error.h"
#include "ops/backend.h"

namespace tensorfold {

struct KeptRows {
  std::vector<std::int32_t> pass_rows;  // rows of the pass, ascending; entry i is kept as row i of the buffer
  std::unique_ptr<ops::Buffer> buffer;

  /// The buffer's row of a row of the last pass; it must have been flagged.
  std::int32_t index_of(std::int32_t pass_row) const {
    const auto found = std::lower_bound(pass_rows.begin(), pass_rows.end(), pass_row);
    TF_ASSERT(found != pass_rows.end() && *found == pass_row);
    return static_cast<std::int32_t>(found - pass_rows.begin());
  }
};

}  // namespace tensorfold
