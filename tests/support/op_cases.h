// Ops of a model with tensors of given sizes, for tests of sizes and for the benches. Each case is made here, once. A
// maker makes the tensors on its device: normal(shape, dtype, deviation, positive), output(shape, dtype) for an op's
// outputs, integers(values), and structure(value), the address of a value there.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "core/ops/attention/attention.h"
#include "core/ops/elementwise/activation.h"
#include "core/ops/gemm/gemm.h"
#include "core/ops/loss/cross_entropy.h"
#include "core/ops/norm/norm.h"
#include "core/ops/optim/adamw.h"
#include "core/ops/optim/grad_norm.h"
#include "core/ops/token/embedding.h"
#include "moe/ops/grouped_gemm/grouped_gemm.h"

namespace megalith::test {

// Token t with a probability proportional to 1 / (t + 1), as in text.
inline std::vector<std::int32_t> zipf_tokens(std::int64_t count, std::int64_t vocabulary) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> uniform(0, std::log(static_cast<double>(vocabulary)));
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto token = static_cast<std::int32_t>(std::exp(uniform(random))) - 1;
    tokens.push_back(std::min(token, static_cast<std::int32_t>(vocabulary) - 1));
  }
  return tokens;
}

struct NormCase {
  std::int64_t rows, columns;
  DType dtype = DType::kBf16;
  bool residual = true;
  bool again = false;                   // backward also makes the output again
  DeviceType sums = DeviceType::kCuda;  // backend whose number of partial sums of weights' gradients is used

  template <class Maker>
  Tensor normal(Maker& make) const {
    return make.normal({rows, columns}, dtype);
  }
  template <class Maker>
  Tensor output(Maker& make) const {
    return make.output({rows, columns}, dtype);
  }
  template <class Maker>
  Tensor partial(Maker& make) const {
    return make.output({norm_partials(sums), columns}, DType::kFp32);
  }
};
template <class Maker>
LayerNormForward layer_norm_forward(Maker& make, const NormCase& c) {
  return {.x = c.normal(make),
          .residual = c.residual ? c.normal(make) : Tensor{},
          .sum = c.residual ? c.output(make) : Tensor{},
          .weight = make.normal({c.columns}, c.dtype),
          .bias = make.normal({c.columns}, c.dtype),
          .y = c.output(make),
          .mean = make.output({c.rows}, DType::kFp32),
          .rstd = make.output({c.rows}, DType::kFp32)};
}
template <class Maker>
LayerNormBackward layer_norm_backward(Maker& make, const NormCase& c) {
  return {.dy = c.normal(make),
          .x = c.normal(make),
          .weight = make.normal({c.columns}, c.dtype),
          .mean = make.normal({c.rows}, DType::kFp32, 0.1f),
          .rstd = make.normal({c.rows}, DType::kFp32),
          .d_residual = c.residual ? c.normal(make) : Tensor{},
          .dx = c.output(make),
          .d_weight_partial = c.partial(make),
          .d_bias_partial = c.partial(make)};
}
template <class Maker>
RmsNormForward rms_norm_forward(Maker& make, const NormCase& c) {
  return {.x = c.normal(make),
          .residual = c.residual ? c.normal(make) : Tensor{},
          .sum = c.residual ? c.output(make) : Tensor{},
          .weight = make.normal({c.columns}, c.dtype),
          .y = c.output(make),
          .rstd = make.output({c.rows}, DType::kFp32)};
}
template <class Maker>
RmsNormBackward rms_norm_backward(Maker& make, const NormCase& c) {
  return {.dy = c.normal(make),
          .x = c.normal(make),
          .weight = make.normal({c.columns}, c.dtype),
          .rstd = make.normal({c.rows}, DType::kFp32),
          .d_residual = c.residual ? c.normal(make) : Tensor{},
          .dx = c.output(make),
          .d_weight_partial = c.partial(make),
          .y = c.again ? c.output(make) : Tensor{}};
}

struct ActivationCase {
  std::int64_t rows, columns;
  DType dtype = DType::kBf16;
  bool exact = false;  // exact GELU
  bool again = false;  // SwiGLU's backward also makes the output again

  Shape narrow() const { return {rows, columns}; }
  Shape wide() const { return {rows, 2 * columns}; }
};
template <class Maker>
GeluForward gelu_forward(Maker& make, const ActivationCase& c) {
  return {.x = make.normal(c.narrow(), c.dtype, 2), .y = make.output(c.narrow(), c.dtype), .exact = c.exact};
}
template <class Maker>
GeluBackward gelu_backward(Maker& make, const ActivationCase& c) {
  return {.x = make.normal(c.narrow(), c.dtype, 2),
          .dy = make.normal(c.narrow(), c.dtype),
          .dx = make.output(c.narrow(), c.dtype),
          .exact = c.exact};
}
template <class Maker>
SwigluForward swiglu_forward(Maker& make, const ActivationCase& c) {
  return {.x = make.normal(c.wide(), c.dtype, 2), .y = make.output(c.narrow(), c.dtype)};
}
template <class Maker>
SwigluBackward swiglu_backward(Maker& make, const ActivationCase& c) {
  return {.x = make.normal(c.wide(), c.dtype, 2),
          .dy = make.normal(c.narrow(), c.dtype),
          .dx = make.output(c.wide(), c.dtype),
          .y = c.again ? make.output(c.narrow(), c.dtype) : Tensor{}};
}

struct LossCase {
  std::int64_t rows, columns, vocabulary;  // columns after the vocabulary are padding
  DType dtype = DType::kBf16;
  bool gradient = true;
  float scale = 1e-3f;
};
template <class Maker>
CrossEntropy cross_entropy(Maker& make, const LossCase& c, const std::vector<std::int32_t>& labels) {
  return {.logits = make.normal({c.rows, c.columns}, c.dtype, 2),
          .labels = make.integers(labels),
          .loss = make.output({c.rows}, DType::kFp32),
          .vocab_size = c.vocabulary,
          .write_gradient = c.gradient,
          .parameters = make.structure(MicrobatchParameters{.loss_scale = c.scale})};
}

struct EmbeddingCase {
  std::int64_t rows, columns, vocabulary;
  DType dtype = DType::kBf16;
  std::int64_t positions = 0;  // rows of the table of positions, if there is one
  std::int64_t rows_per_sample = 1024;
};
template <class Maker>
EmbeddingForward embedding_forward(Maker& make, const EmbeddingCase& c, const std::vector<std::int32_t>& tokens) {
  return {.tokens = make.integers(tokens),
          .table = make.normal({c.vocabulary, c.columns}, c.dtype),
          .positions = c.positions > 0 ? make.normal({c.positions, c.columns}, c.dtype) : Tensor{},
          .rows_per_sample = c.rows_per_sample,
          .y = make.output({c.rows, c.columns}, c.dtype)};
}
template <class Maker>
EmbeddingBackward embedding_backward(Maker& make, const EmbeddingCase& c, const std::vector<std::int32_t>& tokens) {
  return {.tokens = make.integers(tokens),
          .dy = make.normal({c.rows, c.columns}, c.dtype),
          .d_table = make.normal({c.vocabulary, c.columns}, DType::kFp32),
          .d_positions = c.positions > 0 ? make.normal({c.positions, c.columns}, DType::kFp32) : Tensor{},
          .rows_per_sample = c.rows_per_sample};
}

// The range of one parameter; one in fp32 is its own main parameter.
template <class Maker>
AdamWRange adamw_range(Maker& make, std::int64_t count, DType dtype, DType state) {
  const Tensor main = make.normal({count}, DType::kFp32);
  return {.param = dtype == DType::kFp32 ? main : make.output({count}, dtype),
          .main_param = main,
          .grad = make.normal({count}, state),
          .exp_avg = make.normal({count}, state),
          .exp_avg_sq = make.normal({count}, state, 1, true),
          .weight_decay = 0.1};
}

struct ProductCase {
  std::string name;
  std::int64_t m, n, k;
  bool transpose_a = false, transpose_b = false, bias = false, accumulate = false;

  double flops() const { return 2 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};
template <class Maker>
Gemm gemm(Maker& make, const ProductCase& c, DType dtype) {
  return {.a = make.normal(c.transpose_a ? Shape{c.k, c.m} : Shape{c.m, c.k}, dtype),
          .b = make.normal(c.transpose_b ? Shape{c.n, c.k} : Shape{c.k, c.n}, dtype),
          .c = make.normal({c.m, c.n}, c.accumulate ? DType::kFp32 : dtype),
          .transpose_a = c.transpose_a,
          .transpose_b = c.transpose_b,
          .bias = c.bias ? make.normal({c.n}, dtype) : Tensor{},
          .accumulate = c.accumulate};
}

// Rows of experts, each of which has a matrix of n x k, or two: gate and up.
struct GroupedCase {
  std::int64_t rows, k, n, experts;
  DType dtype = DType::kBf16;
  std::int64_t tokens = 0;  // from which an index gathers the rows
  bool pair = true;

  Shape weights() const { return {experts * n, k}; }
  std::int64_t width() const { return pair ? 2 * n : n; }
};
template <class Maker>
GroupedGemm grouped_gemm(Maker& make, const GroupedCase& c, const Tensor& offsets, const Tensor& index = {}) {
  return {.a = make.normal({index ? c.tokens : c.rows, c.k}, c.dtype),
          .index = index,
          .offsets = offsets,
          .b = make.normal(c.weights(), c.dtype),
          .b2 = c.pair ? make.normal(c.weights(), c.dtype) : Tensor{},
          .c = make.output({c.rows, c.width()}, c.dtype)};
}
template <class Maker>
GroupedGemm grouped_data_gradient(Maker& make, const GroupedCase& c, const Tensor& offsets) {
  return {.a = make.normal({c.rows, c.width()}, c.dtype),
          .offsets = offsets,
          .b = make.normal(c.weights(), c.dtype),
          .b2 = c.pair ? make.normal(c.weights(), c.dtype) : Tensor{},
          .c = make.output({c.rows, c.k}, c.dtype),
          .transpose_b = false};
}
struct GroupedSum {
  DType dtype = DType::kFp32;
  bool accumulate = true;
  Tensor a_index = {}, b_index = {};  // at most one
};
template <class Maker>
GroupedGemmWgrad grouped_weight_gradient(Maker& make, const GroupedCase& c, const Tensor& offsets,
                                         const GroupedSum& s = {}) {
  const auto sum = [&] { return s.accumulate ? make.normal(c.weights(), s.dtype) : make.output(c.weights(), s.dtype); };
  return {.a = make.normal({s.a_index ? c.tokens : c.rows, c.width()}, c.dtype),
          .a_index = s.a_index,
          .b = make.normal({s.b_index ? c.tokens : c.rows, c.k}, c.dtype),
          .b_index = s.b_index,
          .offsets = offsets,
          .c = sum(),
          .c2 = c.pair ? sum() : Tensor{},
          .accumulate = s.accumulate};
}

struct AttentionOpCase {
  std::int64_t samples, tokens, heads, kv_heads, dim;
  DType dtype = DType::kBf16;
  bool deterministic = false;
  bool fused = true;  // queries, keys and values are in one tensor

  Shape rows(std::int64_t count) const { return {samples, tokens, count, dim}; }
  // Tensors of queries, keys and values, in that order.
  template <class Make>
  std::vector<Tensor> parts(const Make& make) const {
    if (!fused) return {make(rows(heads)), make(rows(kv_heads)), make(rows(kv_heads))};
    const Tensor all = make(rows(heads + 2 * kv_heads));
    return {all.slice(2, 0, heads), all.slice(2, heads, kv_heads), all.slice(2, heads + kv_heads, kv_heads)};
  }
};
template <class Maker>
AttentionForward attention_forward(Maker& make, const AttentionOpCase& c) {
  const std::vector<Tensor> x = c.parts([&](const Shape& shape) { return make.normal(shape, c.dtype); });
  return {.q = x[0],
          .k = x[1],
          .v = x[2],
          .out = make.output(c.rows(c.heads), c.dtype),
          .lse = make.output({c.samples, c.heads, c.tokens}, DType::kFp32),
          .scale = 1 / std::sqrt(static_cast<float>(c.dim))};
}
template <class Maker>
AttentionBackward attention_backward(Maker& make, const AttentionOpCase& c, const AttentionForward& forward) {
  const std::vector<Tensor> d = c.parts([&](const Shape& shape) { return make.output(shape, c.dtype); });
  return {.q = forward.q,
          .k = forward.k,
          .v = forward.v,
          .out = forward.out,
          .d_out = make.normal(c.rows(c.heads), c.dtype),
          .lse = forward.lse,
          .delta = make.output(forward.lse.shape, DType::kFp32),
          .dq = d[0],
          .dk = d[1],
          .dv = d[2],
          .scale = forward.scale,
          .deterministic = c.deterministic};
}

}  // namespace megalith::test
