// Names of draft kinds (see draft_source.h).
#include "engine/draft/draft_source.h"

#include "base/error.h"

namespace tensorfold {

const char* draft_kind_name(DraftKind kind) {
  switch (kind) {
    case DraftKind::kCopy:
      return "copy";
    case DraftKind::kRecall:
      return "recall";
    case DraftKind::kMtp:
      return "mtp";
    case DraftKind::kBlock:
      return "block";
  }
  TF_ASSERT(false);
  return "";
}

}  // namespace tensorfold
