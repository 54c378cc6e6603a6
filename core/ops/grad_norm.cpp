#include "core/ops/grad_norm.h"

#include <limits>

namespace megalith {

void fields(const SumOfSquares& op, Fields& f) {
  f.out(op.out, "op.out").dtype(DType::kFp64).shape({static_cast<std::int64_t>(op.tensors.size())});
  f.workspace(op.workspace);
  for (const Tensor& tensor : op.tensors) {
    const Tensor& first = op.tensors.front();
    f.next_element();
    f.in(tensor, "tensor").dtype(&tensor == &first ? kFloatTypes : DTypeSet{first.dtype}).any_shape();
  }
}

std::size_t workspace_bytes(const SumOfSquares& op, DeviceType device) {
  if (device != DeviceType::kCuda) return 0;
  std::int64_t slices = 0;
  for (const Tensor& tensor : op.tensors) slices += (tensor.numel() + kSquareSlice - 1) / kSquareSlice;
  return static_cast<std::size_t>(slices) * sizeof(double);
}

void fields(const GradNormFinalize& op, Fields& f) {
  f.in(op.sums, "op.sums").dtype(DType::kFp64).rank(1);
  f.in(op.loss, "op.loss").dtype(DType::kFp32).shape({1});
  f.inout(op.parameters, "op.parameters");
  f.range(op.clip_grad, 0, std::numeric_limits<double>::max(), "op.clip_grad");
}

void fields(const WriteStepParameters& op, Fields& f) { f.out(op.parameters, "op.parameters"); }

void fields(const WriteMicrobatchParameters& op, Fields& f) { f.out(op.out, "op.out"); }

}  // namespace megalith
