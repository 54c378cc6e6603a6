// Memory-bound, one pass, one launch for up to kMaxRanges ranges, whose addresses are kernel parameters. Blocks process
// chunks of the ranges in turn. A thread owns a few quads of neighboring elements at a time, of all five arrays, so
// that a warp's accesses are contiguous in each. Every operation is rounded as on the CPU, so that both give equal
// bits; elementwise, so deterministic.
#include "core/ops/cuda_launch.cuh"
#include "core/ops/cuda_pack.cuh"
#include "core/ops/optim/adamw.h"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kThreads = 256;
constexpr int kQuad = 4;   // neighboring elements
constexpr int kQuads = 2;  // quads per thread
constexpr std::int64_t kChunk = kThreads * kQuad * kQuads;
constexpr int kBlocksPerMultiprocessor = 4;
constexpr int kMaxRanges = 256;  // 16 KiB of the 32 KiB limit of a kernel's parameters

struct Range {
  void *param, *exp_avg, *exp_avg_sq, *grad;
  float* main_param;
  std::int64_t count;
  double weight_decay;
  int end_chunk;  // end of this range's chunks
  bool vector;    // all five arrays are aligned
  bool separate;  // param is not main_param
  bool decoupled;
};

struct Arguments {
  Range ranges[kMaxRanges];
  double beta1, beta2, eps;
  const StepParameters* parameters;
  int chunks;
};

struct Coefficients {
  float clip, one_minus_beta1, beta2, one_minus_beta2, step_size, root_correction, eps;
  float decoupled_step_size;
};

__device__ inline double power(double base, std::int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent >>= 1, base *= base) {
    if ((exponent & 1) != 0) result *= base;
  }
  return result;
}

__device__ Coefficients coefficients(const Arguments& a) {
  const StepParameters& step = *a.parameters;
  const auto learning_rate = static_cast<double>(step.learning_rate);
  const auto decoupled = static_cast<double>(step.decoupled_learning_rate);
  const double correction1 = 1 - power(a.beta1, step.adam_count), correction2 = 1 - power(a.beta2, step.adam_count);
  return {.clip = step.clip_factor,
          .one_minus_beta1 = static_cast<float>(1 - a.beta1),
          .beta2 = static_cast<float>(a.beta2),
          .one_minus_beta2 = static_cast<float>(1 - a.beta2),
          .step_size = static_cast<float>(learning_rate / correction1),
          .root_correction = static_cast<float>(1 / sqrt(correction2)),
          .eps = static_cast<float>(a.eps),
          .decoupled_step_size = static_cast<float>(decoupled / correction1)};
}

__device__ inline void step_element(float& w, float& m, float& v, float gradient, float decay, const Coefficients& c) {
  const float g = __fmul_rn(gradient, c.clip);
  m = __fmaf_rn(__fsub_rn(g, m), c.one_minus_beta1, m);
  v = __fmaf_rn(__fmul_rn(g, g), c.one_minus_beta2, __fmul_rn(v, c.beta2));
  const float denominator = __fmaf_rn(__fsqrt_rn(v), c.root_correction, c.eps);
  w = __fmaf_rn(-c.step_size, __fdiv_rn(m, denominator), __fmul_rn(w, decay));
}

// Elements [first, first + 4) of a range; some may be beyond its end.
template <class T, class G, class M, class V>
__device__ inline void step_few(const Range& range, std::int64_t first, float decay, const Coefficients& c) {
  for (std::int64_t i = first; i < first + kQuad && i < range.count; ++i) {
    float w = range.main_param[i], m = widen(static_cast<M*>(range.exp_avg)[i]),
          v = widen(static_cast<V*>(range.exp_avg_sq)[i]);
    step_element(w, m, v, widen(static_cast<const G*>(range.grad)[i]), decay, c);
    static_cast<M*>(range.exp_avg)[i] = narrow<M>(m);
    static_cast<V*>(range.exp_avg_sq)[i] = narrow<V>(v);
    range.main_param[i] = w;
    if (range.separate) static_cast<T*>(range.param)[i] = narrow<T>(w);
  }
}

template <class T>
__device__ inline Group<T, kQuad>& quad_at(void* data, std::int64_t first) {
  return *reinterpret_cast<Group<T, kQuad>*>(static_cast<T*>(data) + first);
}

// kCount aligned quads within the range, the first at `first`, one in kThreads of a chunk.
template <class T, class G, class M, class V, int kCount>
__device__ inline void step_quads(const Range& range, std::int64_t first, float decay, const Coefficients& c) {
  Group<G, kQuad> raw_gradient[kCount];
  Group<float, kQuad> raw_weight[kCount];
  Group<M, kQuad> raw_first[kCount];
  Group<V, kQuad> raw_second[kCount];
#pragma unroll
  for (int q = 0; q < kCount; ++q) {
    const std::int64_t at = first + q * kThreads * kQuad;
    raw_gradient[q] = quad_at<G>(range.grad, at);
    raw_weight[q] = quad_at<float>(range.main_param, at);
    raw_first[q] = quad_at<M>(range.exp_avg, at);
    raw_second[q] = quad_at<V>(range.exp_avg_sq, at);
  }
#pragma unroll
  for (int q = 0; q < kCount; ++q) {
    const std::int64_t at = first + q * kThreads * kQuad;
    float g[kQuad], w[kQuad], m[kQuad], v[kQuad];
    raw_gradient[q].get(g);
    raw_weight[q].get(w);
    raw_first[q].get(m);
    raw_second[q].get(v);
#pragma unroll
    for (int j = 0; j < kQuad; ++j) step_element(w[j], m[j], v[j], g[j], decay, c);
    quad_at<M>(range.exp_avg, at) = Group<M, kQuad>(m);
    quad_at<V>(range.exp_avg_sq, at) = Group<V, kQuad>(v);
    quad_at<float>(range.main_param, at) = Group<float, kQuad>(w);
    if (sizeof(T) == 2 || range.separate) quad_at<T>(range.param, at) = Group<T, kQuad>(w);
  }
}

template <class T, class G, class M, class V>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    adamw_kernel(const __grid_constant__ Arguments a) {
  if (a.parameters->skip != 0) return;
  __shared__ Coefficients shared;
  if (threadIdx.x == 0) shared = coefficients(a);
  __syncthreads();
  Coefficients c = shared;
  int at = 0, begin = 0;
  for (int chunk = static_cast<int>(blockIdx.x); chunk < a.chunks; chunk += static_cast<int>(gridDim.x)) {
    while (chunk >= a.ranges[at].end_chunk) begin = a.ranges[at++].end_chunk;
    const Range& range = a.ranges[at];
    const std::int64_t start = (chunk - begin) * kChunk, first = start + static_cast<int>(threadIdx.x) * kQuad;
    const StepParameters& step = *a.parameters;
    const auto learning_rate = static_cast<double>(range.decoupled ? step.decoupled_learning_rate : step.learning_rate);
    c.step_size = range.decoupled ? shared.decoupled_step_size : shared.step_size;
    const auto decay = static_cast<float>(fma(-learning_rate, range.weight_decay * step.weight_decay_scale, 1.0));
    if (range.vector && start + kChunk <= range.count) {
      step_quads<T, G, M, V, kQuads>(range, first, decay, c);
      continue;
    }
    for (int q = 0; q < kQuads; ++q) {
      const std::int64_t at = first + q * kThreads * kQuad;
      if (range.vector && at + kQuad <= range.count) {
        step_quads<T, G, M, V, 1>(range, at, decay, c);
      } else {
        step_few<T, G, M, V>(range, at, decay, c);
      }
    }
  }
}

void launch_ranges(CudaStream& stream, const AdamWRange& like, const Arguments& a) {
  const std::int64_t most = stream.multiprocessors() * kBlocksPerMultiprocessor;
  const Grid grid{static_cast<unsigned>(std::clamp<std::int64_t>(a.chunks, 1, most)), kThreads};
  Variants(like.param.dtype, like.grad.dtype, like.exp_avg.dtype, like.exp_avg_sq.dtype)
      .visit([&](auto param, auto grad, auto first, auto second) {
        launch_kernel(stream, grid, adamw_kernel<decltype(param), decltype(grad), decltype(first), decltype(second)>,
                      a);
      });
}

}  // namespace

void run(CudaStream& stream, const AdamW& op) {
  Arguments a{};
  a.beta1 = op.beta1, a.beta2 = op.beta2, a.eps = op.eps, a.parameters = op.parameters;
  int filled = 0;
  for (std::size_t i = 0; i < op.ranges.size(); ++i) {
    const AdamWRange& range = op.ranges[i];
    const std::int64_t chunks = a.chunks + ceil_divide(range.param.numel(), kChunk);
    require(chunks < kMaxIndex / 2, "AdamW: more than 2^41 elements");
    a.chunks = static_cast<int>(chunks);
    a.ranges[filled++] = {
        .param = range.param.data,
        .exp_avg = range.exp_avg.data,
        .exp_avg_sq = range.exp_avg_sq.data,
        .grad = range.grad.data,
        .main_param = range.main_param.as<float>(),
        .count = range.param.numel(),
        .weight_decay = range.weight_decay,
        .end_chunk = a.chunks,
        .vector = starts_aligned(range.param, range.main_param, range.grad, range.exp_avg, range.exp_avg_sq),
        .separate = range.param.data != range.main_param.data,
        .decoupled = range.decoupled};
    if (filled < kMaxRanges && i + 1 < op.ranges.size()) continue;
    launch_ranges(stream, range, a);
    filled = 0, a.chunks = 0;
  }
}

}  // namespace megalith
