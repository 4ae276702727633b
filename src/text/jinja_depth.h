// Bounds the interpreter's own recursion, whatever nests: statements, expressions, macros, filters that call filters.
#pragma once

#include "base/limits.h"
#include "text/jinja_runtime.h"

namespace tensorfold::jinja {

class EvaluationDepth {
 public:
  explicit EvaluationDepth(Runtime& runtime) : runtime_(runtime) {
    if (++runtime_.depth > limits::kTemplateEvaluationDepthMax) {
      --runtime_.depth;
      fail(ErrorCode::kResourceExhausted, "chat template, line {}: evaluation nests more than {} levels deep",
           runtime_.line, limits::kTemplateEvaluationDepthMax);
    }
  }
  ~EvaluationDepth() { --runtime_.depth; }
  EvaluationDepth(const EvaluationDepth&) = delete;
  EvaluationDepth& operator=(const EvaluationDepth&) = delete;

 private:
  Runtime& runtime_;
};

}  // namespace tensorfold::jinja
