#include "core/ops/adamw.h"

#include <cmath>
#include <limits>

#include "core/ops/op_checks.h"

namespace megalith {

void check(const AdamW& op) {
  check_rank(op.param, 1, "op.param");
  check_dtype(op.param, kFloatTypes, "op.param");
  check_contiguous(op.param, "op.param");
  const auto check_state = [&op](const Tensor& t, std::string_view name) {
    check_shape(t, op.param.shape, name);
    check_dtype(t, {DType::kFp32}, name);
    check_contiguous(t, name);
  };
  check_state(op.main_param, "op.main_param");
  check_state(op.grad, "op.grad");
  check_state(op.exp_avg, "op.exp_avg");
  check_state(op.exp_avg_sq, "op.exp_avg_sq");
  check_same_or_apart(op.main_param, "op.main_param", op.param, "op.param");
  check_no_overlap(op.main_param, "op.main_param", op.grad, "op.grad");
  check_no_overlap(op.main_param, "op.main_param", op.exp_avg, "op.exp_avg");
  check_no_overlap(op.main_param, "op.main_param", op.exp_avg_sq, "op.exp_avg_sq");
  check_no_overlap(op.exp_avg, "op.exp_avg", op.exp_avg_sq, "op.exp_avg_sq");
  const double below_one = std::nextafter(1.0, 0.0);
  check_range(op.beta1, 0, below_one, "op.beta1");
  check_range(op.beta2, 0, below_one, "op.beta2");
  check_range(op.eps, 0, std::numeric_limits<double>::max(), "op.eps");
  check_range(op.weight_decay, 0, std::numeric_limits<double>::max(), "op.weight_decay");
  check_pointer(op.parameters, "op.parameters");
}

void access(const AdamW& op, Access& a) {
  a.add(op.parameters, sizeof(StepParameters), false);
  a.reads(op.grad);
  a.writes(op.param);
  a.writes(op.main_param);
  a.writes(op.exp_avg);
  a.writes(op.exp_avg_sq);
}

}  // namespace megalith
