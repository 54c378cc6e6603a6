// Layers of experts instead of MLPs (mixture of experts), under the names of Megatron's flags, in snake_case without
// moe_. The struct is plain data and a part of ModelConfig.
// H hidden, F FFN size of an expert, E experts, K experts a token.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megalith {

enum class MoeScoreFunction { kSoftmax, kSigmoid };
enum class MoeRouterDtype { kFp32, kFp64 };
enum class MoeDropPolicy { kProbs, kPosition };

// Tokens that an auxiliary loss averages over; Fedus et al. 2021, arXiv:2101.03961, eq. 4.
enum class MoeBalancing {
  kMicrobatch,  // aux_loss: the tokens of a microbatch, on all ranks that share its sequences
  kSequence,    // seq_aux_loss: each sequence separately; DeepSeek-V3 2024, arXiv:2412.19437, eq. 17
  kGlobal,      // global_aux_loss: the step's microbatches so far, on all ranks; Qiu et al. 2025, arXiv:2501.11873
};

// Transport of rows to the ranks of their experts. kAuto: kFlex if ranks can read each other's memory, else kAllToAll.
enum class MoeTokenDispatcher { kAuto, kAllToAll, kAllGather, kFlex };

struct MoeConfig {
  std::int64_t num_experts = 0;      // E; 0: no layers of experts
  std::string layer_freq = "1";      // N: layers 0, N, 2N, ...; or a list such as "[0]*3+[1]*26": layers with 1
  std::int64_t ffn_hidden_size = 0;  // F; 0: that of the MLPs
  std::int64_t router_topk = 2;      // K
  MoeScoreFunction router_score_function = MoeScoreFunction::kSoftmax;
  bool router_pre_softmax = false;        // softmax over all experts, not over the K chosen
  double router_topk_scaling_factor = 1;  // factor of the weights; 1: none
  std::int64_t router_num_groups = 0;     // groups of neighboring experts; 0: no groups
  std::int64_t router_group_topk = 0;     // groups that a token chooses its experts from
  MoeRouterDtype router_dtype = MoeRouterDtype::kFp32;

  std::vector<std::string>
      router_load_balancing_type;      // aux_loss, seq_aux_loss, global_aux_loss, none; resolved: one or more
  std::vector<double> aux_loss_coeff;  // one per type; empty: 0
  double z_loss_coeff = 0;
  bool router_enable_expert_bias = false;
  double router_bias_update_rate = 1e-3;
  bool router_force_load_balancing = false;  // random choices, for benchmarks

  double expert_capacity_factor = 0;  // maximum rows of an expert over the mean, per rank and microbatch; 0: unlimited
  MoeDropPolicy token_drop_policy = MoeDropPolicy::kProbs;  // drops the lowest weights, or the last tokens
  bool pad_expert_input_to_capacity = false;                // no effect on results: no kernel needs padded rows

  std::int64_t shared_expert_intermediate_size = 0;  // F of an MLP that processes all tokens; 0: none
  bool shared_expert_gate = false;

  // Groups of neighboring experts: a token's rows are summed and rounded per group, then over groups.
  // 0: one group per expert-parallel rank. The bits depend on the number of groups only.
  std::int64_t combine_groups = 0;

  bool grouped_gemm = false;                     // --moe-grouped-gemm
  bool use_transformer_engine_op_fuser = false;  // fuses the activation into the product's kernel: equal bits

  double balancing_coeff(MoeBalancing over) const;  // 0: no such loss
  double balancing_coeff() const;                   // sum over all types
};

// Returns for each layer whether it has experts; empty unless `layer_freq` is a number above 0 or a list of 0 and 1.
std::vector<bool> moe_layers(const MoeConfig& moe, std::int64_t num_layers);

struct ModelConfig;
// Returns the number of expert layers among the first `layers` layers of the model.
std::int64_t moe_layers_before(const ModelConfig& config, std::int64_t layers);
// Returns whether any layer has an MLP; if `shared`, a shared expert counts as an MLP.
bool has_mlp(const ModelConfig& config, bool shared);
void resolve_moe(ModelConfig& config);
void validate_moe(const ModelConfig& config);  // called by validate()

}  // namespace megalith
