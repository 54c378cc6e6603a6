// Router of a mixture of experts: maps logits to the K experts of a token and their weights, computes the gradient, and
// two losses on the scores. fp32 or, for fp64 logits, fp64; weights, gradients and losses are rounded to fp32.
// Deterministic, without atomics. Shazeer et al. 2017, arXiv:1701.06538
// (top-k gating); DeepSeek-V3 2024, arXiv:2412.19437, section 2.1.2 (sigmoid, bias, groups); Fedus et al. 2021,
// arXiv:2101.03961, eq. 4 to 6 (load balancing); Zoph et al. 2022, arXiv:2202.08906, eq. 5 (z loss). Options follow
// Megatron-LM's flags.
//   T: tokens, E: experts, K: choices of a token
#pragma once

#include <cstdint>

#include "core/ops/device_parameters.h"
#include "core/ops/op_declaration.h"
#include "moe/ops/route_rows.h"

namespace megalith {

inline constexpr std::int64_t kMaxChoices = 16;
inline constexpr std::int64_t kMaxExpertGroups = 32;
inline constexpr float kSigmoidEpsilon = 1e-20f;  // added to sums of sigmoids, as in Megatron-LM

// Weights of the chosen experts c, times scaling_factor.
enum class RouterScore : std::uint8_t {
  kSoftmaxOfChosen,  // exp(x_c) / sum over the chosen of exp(x)
  kSoftmax,          // exp(x_c) / sum over all of exp(x): --moe-router-pre-softmax
  kSigmoid,          // s_c = 1 / (1 + exp(-x_c)); if K > 1: s_c / (sum over the chosen of s + 1e-20)
};

std::int64_t spread_step(std::int64_t experts);  // about 0.618 E, coprime to E

// Chooses the K experts with the highest scores, in descending order; on a tie, the lower index is first. A score is
// the logit or, with expert_bias, sigmoid(x) + bias; weights do not include the bias. With num_groups > 1, only the
// group_topk best groups of adjacent experts are eligible. A group's score is the sum over its K / group_topk best
// experts of x, softmax(x), or sigmoid(x) + bias, by `score`. NaN logits are last; the K choices are always distinct.
// If the best eligible score is NaN, token t takes experts (t K + k) spread_step(E) mod E. Adjacent tokens then choose
// experts evenly and need no more capacity than balanced routing. A padding row chooses nothing: its choices are -1 and
// its weights 0, so that it has no rows and counts in no loss.
struct RouterTopk {
  MEGALITH_OP(RouterTopk, "router_topk");
  Tensor logits;       // [T, E] fp32 | fp64
  Tensor expert_bias;  // optional, [E] fp32; with kSigmoid only
  Tensor positions;    // optional, [T] int32: -1 is padding
  Tensor choice;       // [T, K] int32 out
  Tensor weight;       // [T, K] fp32 out
  RouterScore score = RouterScore::kSoftmaxOfChosen;
  float scaling_factor = 1;
  std::int64_t num_groups = 1;  // divides E
  std::int64_t group_topk = 1;  // divides K
};

// d_logits = gradient through the weights, plus the gradient of the losses below times parameters->router_scale; 0 for
// padding. Forward values are recomputed from the logits. Each element is written once.
struct RouterTopkBackward {
  MEGALITH_OP(RouterTopkBackward, "router_topk_backward");
  Tensor logits;                                     // [T, E] fp32 | fp64; not read for kSoftmaxOfChosen without losses
  Tensor choice;                                     // [T, K] int32 from forward
  Tensor weight;                                     // [T, K] fp32 from forward
  Tensor d_weight;                                   // [T, K] fp32
  Tensor loads;                                      // optional, [E] fp32, as in RouterLosses
  const MicrobatchParameters* parameters = nullptr;  // device: router_scale; required with a loss
  Tensor d_logits;                                   // [T, E] fp32 out; may be fp32 logits
  RouterScore score = RouterScore::kSoftmaxOfChosen;
  float scaling_factor = 1;
  float z_scale = 0;  // as in RouterLosses; 0: no z loss
};

// l_e = coeff n_e / (mean of n), or that added to l_e, with n_e rows of expert e; balanced loads are coeff each. Row p
// counts sequence p, or one row counts for all. Counts may be sums over ranks with other tokens. Megatron-LM's n_e
// counts the highest P, which differ from the chosen experts under groups or a bias.
struct RelativeLoads {
  MEGALITH_OP(RelativeLoads, "relative_loads");
  Tensor offsets;  // [P or 1, E + 1] int32: n_e = offsets[e + 1] - offsets[e]
  Tensor counted;  // optional, [E] int32, added to n_e
  Tensor loads;    // [P, E] fp32 out; in and out with `adds`
  float coeff = 0;
  bool adds = false;
};

// aux += sum over t, e of l_e P(t, e). P is the softmax over all experts, or for kSigmoid s_e / (sum over all of s +
// 1e-20). z += z_scale sum over t of log(sum over e of exp(x))^2. The losses of N tokens are these sums over N: coeff E
// / (K N^2) sum of n_e P(t, e), and coeff / N sum of log^2. Sums over tokens are in fp64.
struct RouterLosses {
  MEGALITH_OP_WITH_WORKSPACE(RouterLosses, "router_losses");
  Tensor logits;  // [T, E] fp32 | fp64
  Tensor choice;  // optional, [T, K] int32: a token whose first choice is below 0 counts nowhere
  Tensor loads;   // [E] fp32, l_e from RelativeLoads; required with aux
  Tensor aux;     // optional, [1] fp32 in and out
  Tensor z;       // optional, [1] fp32 in and out
  RouterScore score = RouterScore::kSoftmaxOfChosen;
  float z_scale = 0;
  Tensor workspace;  // [workspace_bytes(op, device)] uint8
};
inline constexpr int kMaxLossBlocks = 1024;  // CUDA only; each block writes two sums to the workspace

// True if the gradient depends on more than forward's outputs.
inline bool needs_logits(const RouterTopkBackward& op) {
  return op.score != RouterScore::kSoftmaxOfChosen || op.loads || op.z_scale != 0;
}

}  // namespace megalith
