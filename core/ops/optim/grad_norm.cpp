#include "core/ops/optim/grad_norm.h"

#include <limits>

#include "core/ops/fields.h"

namespace megalith {

void fields(const SumOfSquares& op, Fields& f) {
  for (const SquaredTensor& tensor : op.tensors) {
    const SquaredTensor& first = op.tensors.front();
    f.next_element();
    f.in(tensor.x, "tensor.x").dtype(&tensor == &first ? kFloatTypes : DTypeSet{first.x.dtype}).any_shape();
    f.range(static_cast<double>(tensor.block), 1, kSquareBlock, "tensor.block");
    f.range(static_cast<double>(tensor.begin), 0, static_cast<double>(tensor.block - 1), "tensor.begin");
    f.out(tensor.pieces, "tensor.pieces").dtype(DType::kFp64).shape({tensor.num_pieces()});
  }
}

void fields(const AddPieces& op, Fields& f) {
  f.in(op.pieces, "op.pieces").dtype(DType::kFp64).shape({op.ends.empty() ? 0 : op.ends.back()});
  std::int64_t begin = 0;
  for (const std::int64_t end : op.ends) {
    f.expect(end >= begin, "op.ends", "a piece that is not before the one ahead of it", end);
    begin = end;
  }
  f.out(op.out, "op.out").dtype(DType::kFp64).shape({static_cast<std::int64_t>(op.ends.size())});
}

void fields(const GradNormFinalize& op, Fields& f) {
  f.in(op.sums, "op.sums").dtype(DType::kFp64).rank(1);
  f.in(op.loss, "op.loss").dtype(DType::kFp32).shape({1});
  f.in(op.room.needed, "op.room.needed").dtype(DType::kInt32).shape({2}).optional();
  f.inout(op.parameters, "op.parameters");
  f.range(op.clip_grad, 0, std::numeric_limits<double>::max(), "op.clip_grad");
}

void fields(const WriteStepParameters& op, Fields& f) { f.out(op.parameters, "op.parameters"); }

void fields(const WriteMicrobatchParameters& op, Fields& f) { f.out(op.out, "op.out"); }

}  // namespace megalith
