#include "core/ops/norm.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/ops/op_checks.h"

namespace megalith {

namespace {

void check_input(const Tensor& x) {
  check_dtype(x, {DType::kFp32, DType::kBf16}, "op.x");
  if (x.rank() < 2 || x.rank() > 4 || x.size(-1) < 1) {
    fail({.subject = "op.x", .expected = "2 to 4 dims, the last at least 1", .got = to_string(x.shape)});
  }
  check_shape(x, x.shape, "op.x");
  check_rows(x, "op.x");
}

// A tensor of the shape, dtype and row layout rules of x.
void check_like(const Tensor& tensor, const Tensor& x, const char* name) {
  check_shape(tensor, x.shape, name);
  check_dtype(tensor, {x.dtype}, name);
  check_rows(tensor, name);
}

void check_vector(const Tensor& tensor, const Tensor& x, const char* name) {
  check_shape(tensor, {x.size(-1)}, name);
  check_dtype(tensor, {x.dtype}, name);
  check_contiguous(tensor, name);
}

void check_statistic(const Tensor& tensor, const Tensor& x, const char* name) {
  check_shape(tensor, {x.numel() / x.size(-1)}, name);
  check_dtype(tensor, {DType::kFp32}, name);
  check_contiguous(tensor, name);
}

void check_partial(const Tensor& tensor, const Tensor& x, const char* name) {
  check_rank(tensor, 2, name);
  check_shape(tensor, {std::max<std::int64_t>(tensor.size(0), 1), x.size(-1)}, name);
  check_dtype(tensor, {DType::kFp32}, name);
  check_contiguous(tensor, name);
}

template <class Op>
void check_forward(const Op& op) {
  check_input(op.x);
  if (op.residual.present() != op.sum.present()) {
    fail({.subject = "op.sum",
          .expected = "present exactly with op.residual",
          .got = op.sum ? "op.sum alone" : "op.residual alone"});
  }
  if (op.residual) {
    check_like(op.residual, op.x, "op.residual");
    check_like(op.sum, op.x, "op.sum");
    check_same_or_apart(op.sum, "op.sum", op.x, "op.x");
    check_same_or_apart(op.sum, "op.sum", op.residual, "op.residual");
    check_no_overlap(op.y, "op.y", op.residual, "op.residual");
    check_no_overlap(op.y, "op.y", op.sum, "op.sum");
  }
  check_vector(op.weight, op.x, "op.weight");
  check_like(op.y, op.x, "op.y");
  check_no_overlap(op.y, "op.y", op.x, "op.x");
  check_no_overlap(op.y, "op.y", op.weight, "op.weight");
  check_statistic(op.rstd, op.x, "op.rstd");
}

template <class Op>
void check_backward(const Op& op) {
  check_input(op.x);
  check_like(op.dy, op.x, "op.dy");
  check_vector(op.weight, op.x, "op.weight");
  check_statistic(op.rstd, op.x, "op.rstd");
  check_like(op.dx, op.x, "op.dx");
  check_no_overlap(op.dx, "op.dx", op.x, "op.x");
  check_same_or_apart(op.dx, "op.dx", op.dy, "op.dy");
  if (op.d_residual) {
    check_like(op.d_residual, op.x, "op.d_residual");
    check_same_or_apart(op.dx, "op.dx", op.d_residual, "op.d_residual");
  }
  check_partial(op.d_weight_partial, op.x, "op.d_weight_partial");
}

template <class Op>
void access_forward(const Op& op, Access& a) {
  a.reads(op.x);
  a.add(op.x.bound, sizeof(std::int32_t), false);
  a.reads(op.residual);
  a.reads(op.weight);
  a.writes(op.sum);
  a.writes(op.y);
  a.writes(op.rstd);
}

template <class Op>
void access_backward(const Op& op, Access& a) {
  a.reads(op.dy);
  a.reads(op.x);
  a.add(op.x.bound, sizeof(std::int32_t), false);
  a.reads(op.weight);
  a.reads(op.rstd);
  a.reads(op.d_residual);
  a.writes(op.dx);
  a.writes(op.d_weight_partial);
}

}  // namespace

void check(const RmsNormForward& op) { check_forward(op); }
void access(const RmsNormForward& op, Access& a) { access_forward(op, a); }

void check(const RmsNormBackward& op) {
  check_backward(op);
  if (!op.y) return;
  check_like(op.y, op.x, "op.y");
  check_no_overlap(op.y, "op.y", op.x, "op.x");
  check_no_overlap(op.y, "op.y", op.dy, "op.dy");
  check_no_overlap(op.y, "op.y", op.d_residual, "op.d_residual");
  check_no_overlap(op.y, "op.y", op.dx, "op.dx");
}

void access(const RmsNormBackward& op, Access& a) {
  access_backward(op, a);
  a.writes(op.y);
}

void check(const LayerNormForward& op) {
  check_forward(op);
  check_vector(op.bias, op.x, "op.bias");
  check_statistic(op.mean, op.x, "op.mean");
}

void access(const LayerNormForward& op, Access& a) {
  access_forward(op, a);
  a.reads(op.bias);
  a.writes(op.mean);
}

void check(const LayerNormBackward& op) {
  check_backward(op);
  check_statistic(op.mean, op.x, "op.mean");
  check_partial(op.d_bias_partial, op.x, "op.d_bias_partial");
  check_shape(op.d_bias_partial, op.d_weight_partial.shape, "op.d_bias_partial");
}

void access(const LayerNormBackward& op, Access& a) {
  access_backward(op, a);
  a.reads(op.mean);
  a.writes(op.d_bias_partial);
}

}  // namespace megalith
