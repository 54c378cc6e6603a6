// An independent GPT: forward, loss and the gradients of every logical parameter, as plain loops and products of whole
// tensors. It shares no code with core/. Three arithmetics: fp64 is the truth that a model is compared with; fp32 and
// bf16 storage are the independent references at a model's own dtype, whose distance from the truth says what that
// dtype can give. T tokens, H hidden, V vocabulary, N query heads, G key/value heads, D head dim, F ffn.
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
  kBf16Storage,  // every activation and activation gradient is rounded to bf16 where it is stored; sums, statistics and
                 // weight gradients in fp32
};

enum class GptActivation { kGeluTanh, kGeluExact, kSwiglu };

struct GptConfig {
  std::size_t layers = 1, hidden = 0, heads = 0, groups = 0, head_dim = 0, ffn = 0;
  std::size_t vocab = 0;         // columns of the softmax
  std::size_t padded_vocab = 0;  // rows of the tables
  std::size_t rotary_dim = 0;    // 0: no RoPE
  double rotary_base = 10000;
  RopeScaling rope_scaling = {};
  bool rms_norm = false;  // else LayerNorm
  double epsilon = 1e-5;
  GptActivation activation = GptActivation::kGeluTanh;
};

// By logical name, row-major: decoder.layers.0.self_attention.linear_q.weight [N D, H] and so on. What is absent does
// not exist in the model: biases, learned positions, QK norms, an output layer of its own (absent: tied).
using GptTensors = std::map<std::string, std::vector<double>>;

struct GptBatch {
  std::size_t sequences = 1, length = 1;  // row = sequence * length + position
  std::vector<int> tokens, labels;        // [T]
  double loss_scale = 1;                  // gradients are those of loss_scale times the sum of the tokens' losses
  // Factors per element [T, H], 0 or 1 / (1 - p): of the embedding, then of attention and MLP of each layer. Empty:
  // no dropout.
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
