#include "core/ops/norm/norm.h"

#include <algorithm>

#include "core/ops/fields.h"

namespace megalith {

namespace {

// Returns the shape of a statistic.
template <class Op>
Shape inputs(const Op& op, Fields& f) {
  f.in(op.x, "op.x").floating().rank(2, 4).strided_rows().bounded();
  f.in(op.weight, "op.weight").dtype(op.x.dtype).shape({op.x.size(-1)});
  f.expect(op.x.size(-1) >= 1, "op.x", "a last dim of at least 1", op.x.shape);
  return {op.x.numel() / op.x.size(-1)};
}

template <class Op>
Shape forward(const Op& op, Fields& f) {
  const Shape statistic = inputs(op, f);
  f.expect(op.residual.present() == op.sum.present(), "op.sum", "present exactly with op.residual",
           op.sum ? "op.sum alone" : "op.residual alone");
  f.in(op.residual, "op.residual").like(op.x).strided_rows().optional();
  f.out(op.sum, "op.sum").like(op.x).strided_rows().may_be(op.x).may_be(op.residual).optional();
  f.out(op.y, "op.y").like(op.x).strided_rows();
  f.out(op.rstd, "op.rstd").dtype(DType::kFp32).shape(statistic);
  return statistic;
}

template <class Op>
Shape backward(const Op& op, Fields& f) {
  const Shape statistic = inputs(op, f);
  f.in(op.dy, "op.dy").like(op.x).strided_rows();
  f.in(op.rstd, "op.rstd").dtype(DType::kFp32).shape(statistic);
  f.in(op.d_residual, "op.d_residual").like(op.x).strided_rows().optional();
  f.out(op.dx, "op.dx").like(op.x).strided_rows().may_be(op.dy).may_be(op.d_residual);
  const std::int64_t partials = std::max<std::int64_t>(op.d_weight_partial.size(0), 1);
  f.out(op.d_weight_partial, "op.d_weight_partial").dtype(DType::kFp32).shape({partials, op.x.size(-1)});
  return statistic;
}

}  // namespace

void fields(const RmsNormForward& op, Fields& f) { forward(op, f); }

void fields(const RmsNormBackward& op, Fields& f) {
  backward(op, f);
  f.out(op.y, "op.y").like(op.x).strided_rows().optional();
}

void fields(const LayerNormForward& op, Fields& f) {
  const Shape statistic = forward(op, f);
  f.in(op.bias, "op.bias").dtype(op.x.dtype).shape({op.x.size(-1)});
  f.out(op.mean, "op.mean").dtype(DType::kFp32).shape(statistic);
}

void fields(const LayerNormBackward& op, Fields& f) {
  const Shape statistic = backward(op, f);
  f.in(op.mean, "op.mean").dtype(DType::kFp32).shape(statistic);
  f.out(op.d_bias_partial, "op.d_bias_partial").like(op.d_weight_partial);
}

}  // namespace megalith
