#include "core/ops/adamw.h"

#include <cmath>
#include <limits>

#include "core/ops/op_checks.h"

namespace megalith {

namespace {

void check_range_of(const AdamWRange& range, const AdamWRange& first) {
  check_rank(range.param, 1, "range.param");
  check_dtype(range.param, kFloatTypes, "range.param");
  check_dtype(range.param, {first.param.dtype}, "range.param");
  check_contiguous(range.param, "range.param");
  const auto check_state = [&range](const Tensor& t, const Tensor& alike, std::string_view name) {
    check_shape(t, range.param.shape, name);
    check_dtype(t, kFloatTypes, name);
    check_dtype(t, {alike.dtype}, name);
    check_contiguous(t, name);
  };
  check_dtype(range.main_param, {DType::kFp32}, "range.main_param");
  check_state(range.main_param, first.main_param, "range.main_param");
  check_state(range.grad, first.grad, "range.grad");
  check_state(range.exp_avg, first.exp_avg, "range.exp_avg");
  check_state(range.exp_avg_sq, first.exp_avg_sq, "range.exp_avg_sq");
  check_same_or_apart(range.main_param, "range.main_param", range.param, "range.param");
  check_no_overlap(range.main_param, "range.main_param", range.grad, "range.grad");
  check_no_overlap(range.main_param, "range.main_param", range.exp_avg, "range.exp_avg");
  check_no_overlap(range.main_param, "range.main_param", range.exp_avg_sq, "range.exp_avg_sq");
  check_no_overlap(range.exp_avg, "range.exp_avg", range.exp_avg_sq, "range.exp_avg_sq");
  check_range(range.weight_decay, 0, std::numeric_limits<double>::max(), "range.weight_decay");
}

}  // namespace

void check(const AdamW& op) {
  for (const AdamWRange& range : op.ranges) check_range_of(range, op.ranges.front());
  const double below_one = std::nextafter(1.0, 0.0);
  check_range(op.beta1, 0, below_one, "op.beta1");
  check_range(op.beta2, 0, below_one, "op.beta2");
  check_range(op.eps, 0, std::numeric_limits<double>::max(), "op.eps");
  check_pointer(op.parameters, "op.parameters");
}

void access(const AdamW& op, Access& a) {
  a.add(op.parameters, sizeof(StepParameters), false);
  for (const AdamWRange& range : op.ranges) {
    a.reads(range.grad);
    for (const Tensor* state : {&range.main_param, &range.exp_avg, &range.exp_avg_sq}) {
      a.reads(*state);
      a.writes(*state);
    }
    a.writes(range.param);
  }
}

}  // namespace megalith
