#include "core/ops/token/sampling.h"

#include <limits>

#include "core/ops/fields.h"

namespace megalith {

// Of one row at a time: weight and index of each candidate.
std::size_t workspace_bytes(const Sample& op, DeviceType) {
  return static_cast<std::size_t>(op.vocab_size) * (sizeof(float) + sizeof(std::int32_t));
}

void fields(const Sample& op, Fields& f) {
  f.in(op.logits, "op.logits").floating().rank(2).strided_rows();
  f.out(op.out, "op.out").dtype(DType::kInt32).shape({op.logits.size(0)});
  f.range(static_cast<double>(op.vocab_size), 1, static_cast<double>(op.logits.size(1)), "op.vocab_size");
  f.in(op.position, "op.position");
  f.workspace(op.workspace);
  f.range(op.temperature, 0, std::numeric_limits<float>::max(), "op.temperature");
  f.range(op.top_k, 0, std::numeric_limits<int>::max(), "op.top_k");
  f.range(op.top_p, 0, 1, "op.top_p");
}

void fields(const NextPosition& op, Fields& f) {
  f.out(op.start, "op.start");
  f.inout(op.position, "op.position");
}

}  // namespace megalith
