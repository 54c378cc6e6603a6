#include "core/ops/gemm/gemm.h"

#include "core/ops/fields.h"

namespace megalith {

void fields(const Gemm& op, Fields& f) {
  const bool gelu = op.pre_activation || op.gelu_input;
  require(!gelu || !op.accumulate, "Gemm: a GELU and accumulate together");
  require(!op.gelu_input || (!op.pre_activation && !op.bias), "Gemm: gelu_input with a bias or a pre_activation");
  const std::int64_t m = op.a.size(op.transpose_a ? 1 : 0), k = op.a.size(op.transpose_a ? 0 : 1);
  const std::int64_t n = op.b.size(op.transpose_b ? 0 : 1);
  f.in(op.a, "op.a").floating().rank(2).strided_rows();
  f.in(op.b, "op.b").dtype(op.a.dtype).shape(op.transpose_b ? Shape{n, k} : Shape{k, n}).strided_rows();
  Field& c = f.out(op.c, "op.c").dtype({op.a.dtype, DType::kFp32}).shape({m, n}).read_if(op.accumulate);
  if (!gelu) c.strided_rows();
  f.in(op.bias, "op.bias").dtype(op.a.dtype).shape({n}).optional();
  f.in(op.gelu_input, "op.gelu_input").like(op.c).optional();
  f.out(op.pre_activation, "op.pre_activation").like(op.c).optional();
  f.workspace(op.workspace);
  std::size_t fused = 0;
  for (const Tensor* x : {&op.bias, &op.gelu_input, &op.pre_activation}) fused += x->present() ? x->bytes() : 0;
  f.cost({.work = Work::kMatrixProduct,
          .flops = 2.0 * static_cast<double>(m * n) * static_cast<double>(k),
          .bytes = static_cast<double>(fused)});
}

std::size_t workspace_bytes(const Gemm& op, DeviceType device) {
  return device == DeviceType::kCuda && op.c.numel() > 0 ? kGemmWorkspaceBytes : 0;
}

}  // namespace megalith
