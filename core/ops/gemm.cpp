#include "core/ops/gemm.h"

#include "core/tensor/check.h"

namespace megalith {

namespace {

void check_gelu(const Gemm& op, const Tensor& other, std::string_view name) {
  if (!other) return;
  check_shape(other, op.c.shape, name);
  check_dtype(other, {op.c.dtype}, name);
  check_contiguous(other, name);
  check_contiguous(op.c, "op.c");
  check_no_overlap(op.c, "op.c", other, name);
  check_no_overlap(other, name, op.a, "op.a");
  check_no_overlap(other, name, op.b, "op.b");
  if (op.bias) check_no_overlap(other, name, op.bias, "op.bias");
  require(!op.accumulate, "Gemm: a GELU and accumulate together");
}

}  // namespace

void check(const Gemm& op) {
  check_rank(op.a, 2, "op.a");
  check_rank(op.b, 2, "op.b");
  check_rank(op.c, 2, "op.c");
  check_dtype(op.a, {DType::kFp32, DType::kBf16}, "op.a");
  check_dtype(op.b, {op.a.dtype}, "op.b");
  check_dtype(op.c, {op.a.dtype, DType::kFp32}, "op.c");
  check_rows(op.a, "op.a");
  check_rows(op.b, "op.b");
  check_rows(op.c, "op.c");
  const std::int64_t m = op.transpose_a ? op.a.size(1) : op.a.size(0);
  const std::int64_t k = op.transpose_a ? op.a.size(0) : op.a.size(1);
  const std::int64_t n = op.transpose_b ? op.b.size(0) : op.b.size(1);
  check_shape(op.b, op.transpose_b ? Shape{n, k} : Shape{k, n}, "op.b");
  check_shape(op.c, {m, n}, "op.c");
  if (op.bias) {
    check_shape(op.bias, {n}, "op.bias");
    check_dtype(op.bias, {op.a.dtype}, "op.bias");
    check_contiguous(op.bias, "op.bias");
    check_no_overlap(op.c, "op.c", op.bias, "op.bias");
  }
  check_no_overlap(op.c, "op.c", op.a, "op.a");
  check_no_overlap(op.c, "op.c", op.b, "op.b");
  check_gelu(op, op.pre_activation, "op.pre_activation");
  check_gelu(op, op.gelu_input, "op.gelu_input");
  require(!op.gelu_input || (!op.pre_activation && !op.bias), "Gemm: gelu_input with a bias or a pre_activation");
}

void access(const Gemm& op, Access& a) {
  a.reads(op.a);
  a.reads(op.b);
  a.reads(op.bias);
  a.reads(op.gelu_input);
  if (op.accumulate) a.reads(op.c);
  a.writes(op.pre_activation);
  a.writes(op.c);
  const std::int64_t k = op.transpose_a ? op.a.size(0) : op.a.size(1);
  a.add_flops(2.0 * static_cast<double>(op.c.numel()) * static_cast<double>(k));
}

}  // namespace megalith
