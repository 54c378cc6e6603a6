#include "moe/ops/router.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/ops/fields.h"

namespace megalith {

namespace {

constexpr DTypeSet kLogitTypes = {DType::kFp32, DType::kFp64};

void check_experts(const Tensor& x, std::string_view name, Fields& f) {
  f.expect(x.size(1) >= 1 && x.size(1) <= kMaxExperts, name, "1 to 1024 experts", x.shape);
}

void check_choices(const Tensor& choice, const Tensor& experts, Fields& f) {
  const std::int64_t most = std::min(kMaxChoices, experts.size(1));
  f.expect(choice.size(0) == experts.size(0) && choice.size(1) >= 1 && choice.size(1) <= most, "op.choice",
           "a row of 1 to 16 choices for each token, at most as many as experts", choice.shape);
}

void check_scale(float scale, std::string_view name, Fields& f) {
  f.range(static_cast<double>(scale), 0, static_cast<double>(std::numeric_limits<float>::max()), name);
}

void check_scaling_factor(float factor, Fields& f) {
  f.range(static_cast<double>(factor), static_cast<double>(std::numeric_limits<float>::min()),
          static_cast<double>(std::numeric_limits<float>::max()), "op.scaling_factor");
}

}  // namespace

std::int64_t spread_step(std::int64_t experts) {
  std::int64_t step = std::max<std::int64_t>(1, experts * 618 / 1000);
  while (std::gcd(step, experts) != 1) --step;
  return step;
}

void fields(const RouterTopk& op, Fields& f) {
  f.in(op.logits, "op.logits").dtype(kLogitTypes).rank(2);
  check_experts(op.logits, "op.logits", f);
  f.expect(!op.expert_bias || op.score == RouterScore::kSigmoid, "op.expert_bias", "absent unless op.score is kSigmoid",
           "a bias for a softmax");
  f.in(op.expert_bias, "op.expert_bias").dtype(DType::kFp32).shape({op.logits.size(1)}).optional();
  f.in(op.positions, "op.positions").dtype(DType::kInt32).shape({op.logits.size(0)}).optional();
  f.out(op.choice, "op.choice").dtype(DType::kInt32).rank(2);
  check_choices(op.choice, op.logits, f);
  f.out(op.weight, "op.weight").dtype(DType::kFp32).shape(op.choice.shape);
  check_scaling_factor(op.scaling_factor, f);
  f.expect(op.num_groups >= 1 && op.num_groups <= kMaxExpertGroups && op.logits.size(1) % op.num_groups == 0,
           "op.num_groups", "1 to 32 that divide the experts", op.num_groups);
  f.expect(op.group_topk >= 1 && op.group_topk <= op.num_groups && op.choice.size(1) % op.group_topk == 0,
           "op.group_topk", "1 to op.num_groups that divide the choices", op.group_topk);
  f.expect(op.choice.size(1) / op.group_topk <= op.logits.size(1) / op.num_groups, "op.num_groups",
           "groups with at least K / op.group_topk experts", op.num_groups);
}

void fields(const RouterTopkBackward& op, Fields& f) {
  const bool losses = op.loads || op.z_scale != 0;
  f.out(op.d_logits, "op.d_logits").dtype(DType::kFp32).rank(2).may_be(op.logits);
  check_experts(op.d_logits, "op.d_logits", f);
  f.in(op.logits, "op.logits")
      .dtype(kLogitTypes)
      .shape(op.d_logits.shape)
      .needed_if(needs_logits(op))
      .read_if(needs_logits(op));
  f.in(op.choice, "op.choice").dtype(DType::kInt32).rank(2);
  check_choices(op.choice, op.d_logits, f);
  f.in(op.weight, "op.weight").dtype(DType::kFp32).shape(op.choice.shape);
  f.in(op.d_weight, "op.d_weight").dtype(DType::kFp32).shape(op.choice.shape);
  f.in(op.loads, "op.loads").dtype(DType::kFp32).shape({op.d_logits.size(1)}).optional();
  f.in(op.parameters, "op.parameters").needed_if(losses).read_if(losses);
  check_scaling_factor(op.scaling_factor, f);
  check_scale(op.z_scale, "op.z_scale", f);
}

void fields(const RelativeLoads& op, Fields& f) {
  f.out(op.loads, "op.loads").dtype(DType::kFp32).rank(2).read_if(op.adds);
  check_experts(op.loads, "op.loads", f);
  const std::int64_t rows = op.offsets.size(0) == 1 ? 1 : op.loads.size(0);
  f.in(op.offsets, "op.offsets").dtype(DType::kInt32).shape({rows, op.loads.size(1) + 1});
  f.in(op.counted, "op.counted").dtype(DType::kInt32).shape({op.loads.size(1)}).optional();
  check_scale(op.coeff, "op.coeff", f);
}

void fields(const RouterLosses& op, Fields& f) {
  const bool aux = op.aux.present();
  f.in(op.logits, "op.logits").dtype(kLogitTypes).rank(2);
  check_experts(op.logits, "op.logits", f);
  f.in(op.loads, "op.loads").dtype(DType::kFp32).shape({op.logits.size(1)}).needed_if(aux).read_if(aux);
  f.in(op.choice, "op.choice").dtype(DType::kInt32).rank(2).optional();
  if (op.choice) check_choices(op.choice, op.logits, f);
  f.expect(op.aux || op.z, "op.aux", "one of op.aux and op.z", "neither");
  f.inout(op.aux, "op.aux").dtype(DType::kFp32).shape({1}).optional();
  f.inout(op.z, "op.z").dtype(DType::kFp32).shape({1}).optional();
  f.workspace(op.workspace);
  check_scale(op.z_scale, "op.z_scale", f);
}

std::size_t workspace_bytes(const RouterLosses&, DeviceType device) {
  return device == DeviceType::kCuda ? kMaxLossBlocks * 2 * sizeof(double) : 0;
}

}  // namespace megalith
