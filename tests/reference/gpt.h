// An independent GPT: forward, loss and the gradients of every logical parameter, as plain loops and products of
// unsharded tensors. It shares no code with core/. The fp64 arithmetic is the truth for a model. Storage in fp32 and
// bf16 gives independent references at a model's dtype; their distance from the truth shows that dtype's accuracy. T
// tokens, H hidden, V vocabulary, N query heads, G key/value heads, D head dim, F ffn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/reference/rope_scaling.h"

namespace megalith::reference {

enum class GptArithmetic {
  kFp64,
  kFp32,         // sums in fp32, one term after the other
  kBf16Storage,  // every activation and activation gradient is rounded to bf16 when it is stored; sums, statistics and
                 // weight gradients in fp32
};

enum class GptActivation { kGeluTanh, kGeluExact, kSwiglu, kSquaredRelu };

struct GptConfig {
  std::size_t layers = 1, hidden = 0, heads = 0, groups = 0, head_dim = 0, ffn = 0;
  std::size_t vocab = 0;         // columns of the softmax
  std::size_t padded_vocab = 0;  // rows of the tables
  std::size_t rotary_dim = 0;    // 0: no RoPE
  double rotary_base = 10000;
  RopeScaling rope_scaling = {};
  std::vector<std::size_t> windows = {};  // keys of each layer that a query sees up to its own; 0, or empty: all
  bool rms_norm = false;                  // otherwise LayerNorm
  bool zero_centered = false;             // norms multiply by 1 + weight
  double epsilon = 1e-5;
  GptActivation activation = GptActivation::kGeluTanh;
};

// Tensors by logical name, row-major: decoder.layers.0.self_attention.linear_q.weight [N D, H] and so on. The model
// lacks absent tensors: biases, learned positions, QK norms, an untied output layer (absent: tied).
using GptTensors = std::map<std::string, std::vector<double>>;

struct GptBatch {
  std::size_t sequences = 1, length = 1;  // row = sequence * length + position
  std::vector<int> tokens, labels;        // [T]
  double loss_scale = 1;                  // gradients are those of loss_scale times the sum of the tokens' losses
  // Factors per element [T, H], 0 or 1 / (1 - p): first for the embedding, then for attention and MLP of each layer.
  // Empty: no dropout.
  std::vector<std::vector<double>> dropout;
};

struct GptResult {
  std::vector<double> losses;  // [T]
  std::vector<double> logits;  // [T, V]
  GptTensors gradients;        // same names and sizes as the weights
};

// The values of `weights` must be representable in the arithmetic's storage. A tensor that is missing throws.
GptResult run_gpt(GptArithmetic arithmetic, const GptConfig& config, const GptTensors& weights, const GptBatch& batch);

}  // namespace megalith::reference
