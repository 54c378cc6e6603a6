// Shape and numerics of a GPT, under the names of Megatron's flags (in snake_case). A ModelConfig is plain data: flags
// fill it, `resolve` derives fields that are 0, and `validate` rejects impossible models.
// H hidden, F ffn, N heads, G key/value groups, D head dim, V vocabulary, L layers, S sequence length.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model/moe_config.h"
#include "core/ops/attention/rope_frequency.h"
#include "core/tensor/dtype.h"

namespace megalith {

enum class PositionEmbedding { kLearnedAbsolute, kRope, kNone };
enum class RopeType { kRope, kYarn };
enum class Normalization { kLayerNorm, kRmsNorm };

// Activation of the MLP without `swiglu`. kGeluTanh is the tanh form of Hendrycks & Gimpel (arXiv:1606.08415), as in
// GPT-2 and Megatron's fused bias-GeLU. kGelu is the exact x * Phi(x).
enum class ActivationFunction { kGeluTanh, kGelu };

// Model type of transformers, where the same arithmetic has several names. kAuto: Llama.
enum class HfModelType { kAuto, kMistral };

struct ModelConfig {
  std::int64_t num_layers = 0;
  std::int64_t hidden_size = 0;
  std::int64_t ffn_hidden_size = 0;  // 0: 4 H, or with swiglu floor(8 H / 3 / 64) * 64
  std::int64_t num_attention_heads = 0;
  bool group_query_attention = false;        // Megatron's switch: one group if num_query_groups is 0
  std::int64_t num_query_groups = 0;         // key/value heads; 0: num_attention_heads (1 with the switch)
  std::int64_t kv_channels = 0;              // head dim D; 0: hidden_size / num_attention_heads
  std::int64_t seq_length = 0;               // tokens
  std::int64_t max_position_embeddings = 0;  // rows of the learned position table; 0: seq_length

  std::int64_t vocab_size = 0;  // 0: not yet known; the tokenizer supplies it
  std::int64_t make_vocab_size_divisible_by = 128;
  std::int64_t padded_vocab_size =
      0;  // always derived: vocab_size rounded up; rows of the embedding, columns of logits

  // LEFT and RIGHT: keys that a query sees next to its own; LEFT -1: all, RIGHT is 0. Empty: no windows.
  std::vector<std::int64_t> window_size;
  // Layers with a window. Empty: all; N: all but each N-th; or a list such as "([1]*5+[0])*2": layers with 1.
  std::string window_attn_skip_freq;

  PositionEmbedding position_embedding_type = PositionEmbedding::kLearnedAbsolute;
  double rotary_base = 10000.0;
  double rotary_percent = 1.0;  // fraction of the head dim that is rotated
  // Scaling of RoPE: use_rope_scaling, the factor of linear interpolation, or rope_type kYarn; at most one of them.
  bool use_rope_scaling = false;
  RopeScaling rope_scaling{.kind = RopeScalingKind::kLlama3, .factor = 8};  // flags --rope-scaling-*
  double rotary_seq_len_interpolation_factor = 1;
  RopeType rope_type = RopeType::kRope;
  RopeScaling yarn{.kind = RopeScalingKind::kYarn, .original_max_position_embeddings = 4096};

  Normalization normalization = Normalization::kLayerNorm;
  double norm_epsilon = 1e-5;
  bool apply_layernorm_1p = false;  // norms multiply by 1 + weight; weights start as zeros
  bool qk_layernorm = false;        // normalizes q and k per head, over D, before RoPE

  bool swiglu = false;  // Shazeer 2020, arXiv:2002.05202; fc1 then has 2 F outputs, [gate; up]
  ActivationFunction activation_func = ActivationFunction::kGeluTanh;
  bool squared_relu = false;  // max(x, 0)^2; So et al. 2021, arXiv:2109.08668

  MoeConfig moe;

  bool add_bias_linear = true;      // --disable-bias-linear clears it: no bias in any linear
  bool add_qkv_bias = false;        // biases of q, k and v even without add_bias_linear
  bool add_attn_proj_bias = false;  // bias of attention's output projection even without add_bias_linear
  bool untie_embeddings_and_output_weights = false;

  double hidden_dropout = 0.0;
  double attention_dropout = 0.0;

  double init_method_std = 0.02;

  DType params_dtype = DType::kFp32;               // kFp32 or kBf16, of parameters and activations
  HfModelType hf_model_type = HfModelType::kAuto;  // of the config.json that convert writes

  // Returns the initial standard deviation of attention projection and fc2: std / sqrt(2 L), Megatron's scaled init.
  double output_layer_init_std() const;
  // Returns the number of leading elements of each head that RoPE rotates (even); 0 for other position embeddings.
  std::int64_t rotary_dim() const;
  // Returns the scaling of RoPE that the fields select.
  RopeScaling rotary_scaling() const;
  void set_rotary_scaling(const RopeScaling& scaling);
  bool has_qkv_bias() const { return add_bias_linear || add_qkv_bias; }
  bool has_attn_proj_bias() const { return add_bias_linear || add_attn_proj_bias; }
};

// Derives the fields that are 0. Call resolve again once vocab_size is known.
void resolve(ModelConfig& config);

// Returns the window of each layer's attention: keys that a query sees up to its own, 0: all, as in AttentionForward.
// Empty if `window_attn_skip_freq` is invalid.
std::vector<std::int64_t> attention_windows(const ModelConfig& config);
// Returns whether a sample of seq_length tokens reaches a window.
bool has_reached_window(const ModelConfig& config);

// Throws Error (exit code 2) with the flags and the valid values. `config` is resolved; a vocab_size of 0 is valid.
void validate(const ModelConfig& config);

// Number of elements by owner. `padding` is the part of `total` that padding of the vocabulary adds.
struct ParameterCount {
  std::int64_t embedding = 0;  // word and learned position table
  std::int64_t attention = 0;  // q, k, v, projection, QK norms
  std::int64_t mlp = 0;
  std::int64_t router = 0;
  std::int64_t experts = 0;         // all experts, with shared ones
  std::int64_t active_experts = 0;  // those that process one token
  std::int64_t routed_experts = 0;  // all but the shared ones
  std::int64_t norm = 0;            // two per layer and the final one
  std::int64_t output = 0;          // 0 if tied to the word embedding
  std::int64_t own = 0;             // of user-supplied layers, which the config does not describe
  std::int64_t padding = 0;
  std::int64_t total = 0;
  std::int64_t active() const { return total - experts + active_experts; }
};
ParameterCount count_parameters(const ModelConfig& config);

// Returns the floating-point operations per token of a training step, forward and backward, without recompute.
// Each parameter in a matrix product of a token adds 6. The output layer counts; embedding lookups and unchosen experts
// do not. Causal attention adds 6 S N D a layer, since it computes half of the S x S scores; a window of fewer than S /
// 2 keys adds 12 N D a key.
double flops_per_token(const ModelConfig& config);

}  // namespace megalith
