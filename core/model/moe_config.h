// Layers of experts in place of MLPs (mixture of experts), by the names that Megatron's flags have (in snake_case,
// without their moe_). Plain data, a part of ModelConfig.
// H hidden, F FFN size of an expert, E experts, K experts a token.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megalith {

enum class MoeScoreFunction { kSoftmax, kSigmoid };
enum class MoeRouterDtype { kFp32 };
enum class MoeDropPolicy { kProbs, kPosition };

// What an auxiliary loss is taken over; Fedus et al. 2021, arXiv:2101.03961, eq. 4.
enum class MoeBalancing {
  kMicrobatch,  // aux_loss: the tokens of a microbatch, those of all ranks that share its sequences
  kSequence,    // seq_aux_loss: each sequence by itself; DeepSeek-V3 2024, arXiv:2412.19437, eq. 17
  kGlobal,      // global_aux_loss: the step's microbatches so far, of all ranks; Qiu et al. 2025, arXiv:2501.11873
};

// How rows reach the ranks of their experts. kAuto: kFlex where ranks read each other's memory, else kAllToAll.
enum class MoeTokenDispatcher { kAuto, kAllToAll, kAllGather, kFlex };

struct MoeConfig {
  std::int64_t num_experts = 0;      // E; 0: no such layers
  std::string layer_freq = "1";      // N: layers 0, N, 2N, ...; or a list such as "[0]*3+[1]*26": those with 1
  std::int64_t ffn_hidden_size = 0;  // F; 0: the MLPs'
  std::int64_t router_topk = 2;      // K
  MoeScoreFunction router_score_function = MoeScoreFunction::kSoftmax;
  bool router_pre_softmax = false;        // the softmax goes over all experts, not over the K chosen
  double router_topk_scaling_factor = 1;  // of the weights; 1: none
  std::int64_t router_num_groups = 0;     // of neighbouring experts; 0: no groups
  std::int64_t router_group_topk = 0;     // of them a token chooses its experts from so many
  MoeRouterDtype router_dtype = MoeRouterDtype::kFp32;

  std::vector<std::string>
      router_load_balancing_type;      // aux_loss, seq_aux_loss, global_aux_loss, none; resolved: one or more
  std::vector<double> aux_loss_coeff;  // one a type, or none: 0
  double z_loss_coeff = 0;
  bool router_enable_expert_bias = false;
  double router_bias_update_rate = 1e-3;
  bool router_force_load_balancing = false;  // random choices, for benchmarks

  double expert_capacity_factor =
      0;  // rows of an expert over the mean, at most, of a rank and microbatch; 0: any number
  MoeDropPolicy token_drop_policy = MoeDropPolicy::kProbs;  // what goes: the lowest weights, or the last tokens
  bool pad_expert_input_to_capacity = false;                // the same results: no kernel needs rows to be padded

  std::int64_t shared_expert_intermediate_size = 0;  // F of an MLP that all tokens pass; 0: none
  bool shared_expert_gate = false;

  // A token's rows are added up within so many groups of neighbouring experts, each rounded, then over groups; 0: as
  // many as there are ranks of expert parallelism, each of which adds up its own. The same bits at one number.
  std::int64_t combine_groups = 0;

  bool grouped_gemm = false;                     // --moe-grouped-gemm
  bool use_transformer_engine_op_fuser = false;  // the activation in the product's kernel: the same bits

  double balancing_coeff(MoeBalancing over) const;  // 0: no such loss
  double balancing_coeff() const;                   // their sum
};

// One entry a layer. An empty list where `layer_freq` is neither a number above 0 nor a list of 0 and 1.
std::vector<bool> moe_layers(const MoeConfig& moe, std::int64_t num_layers);

struct ModelConfig;
// How many layers of experts there are among the first `layers` of the model.
std::int64_t moe_layers_before(const ModelConfig& config, std::int64_t layers);
// Whether a layer has an MLP, a shared expert beside experts among them where `shared`.
bool has_mlp(const ModelConfig& config, bool shared);
void resolve_moe(ModelConfig& config);
void validate_moe(const ModelConfig& config);  // as validate()

}  // namespace megalith
