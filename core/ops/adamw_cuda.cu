// Memory-bound, one pass: a thread owns eight neighbouring elements at a time, of all five arrays. Every operation is
// rounded as on the CPU, so both give the same bits; elementwise, so deterministic.
#include "core/ops/adamw.h"
#include "core/ops/cuda_launch.cuh"
#include "core/ops/cuda_pack.cuh"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kThreads = 256;
constexpr int kElements = 8;
constexpr std::int64_t kBlocksPerMultiprocessor = 4;  // as many as its registers hold

template <class T>
struct AdamWArguments {
  T* param;
  float *main_param, *exp_avg, *exp_avg_sq;
  const float* grad;
  std::int64_t count;
  double beta1, beta2, eps, weight_decay;
  const StepParameters* parameters;
  bool separate;  // param is not main_param
};

struct Coefficients {
  float clip, decay, one_minus_beta1, beta2, one_minus_beta2, step_size, root_correction, eps;
};

__device__ inline double power(double base, std::int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent >>= 1, base *= base) {
    if ((exponent & 1) != 0) result *= base;
  }
  return result;
}

template <class T>
__device__ Coefficients coefficients(const AdamWArguments<T>& a) {
  const StepParameters& step = *a.parameters;
  const auto learning_rate = static_cast<double>(step.learning_rate);
  const double correction1 = 1 - power(a.beta1, step.adam_count), correction2 = 1 - power(a.beta2, step.adam_count);
  return {.clip = step.clip_factor,
          .decay = static_cast<float>(fma(-learning_rate, a.weight_decay, 1.0)),
          .one_minus_beta1 = static_cast<float>(1 - a.beta1),
          .beta2 = static_cast<float>(a.beta2),
          .one_minus_beta2 = static_cast<float>(1 - a.beta2),
          .step_size = static_cast<float>(learning_rate / correction1),
          .root_correction = static_cast<float>(1 / sqrt(correction2)),
          .eps = static_cast<float>(a.eps)};
}

struct State {
  float w, m, v;
};

__device__ inline void step_element(State& s, float gradient, const Coefficients& c) {
  const float g = __fmul_rn(gradient, c.clip);
  s.m = __fmaf_rn(__fsub_rn(g, s.m), c.one_minus_beta1, s.m);
  s.v = __fmaf_rn(__fmul_rn(g, g), c.one_minus_beta2, __fmul_rn(s.v, c.beta2));
  const float denominator = __fmaf_rn(__fsqrt_rn(s.v), c.root_correction, c.eps);
  s.w = __fmaf_rn(-c.step_size, __fdiv_rn(s.m, denominator), __fmul_rn(s.w, c.decay));
}

// A block takes kThreads * kElements neighbouring elements in turn with the others.
template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads) adamw(const AdamWArguments<T> a) {
  if (a.parameters->skip != 0) return;
  __shared__ Coefficients shared;
  if (threadIdx.x == 0) shared = coefficients(a);
  __syncthreads();
  const Coefficients c = shared;
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads * kElements;
  for (std::int64_t first = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kElements; first < a.count;
       first += stride) {
    if (kVector && first + kElements <= a.count) {
      uint4 g[2], w[2], m[2], v[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        g[k] = load_full(a.grad + first + 4 * k);
        w[k] = load_full(a.main_param + first + 4 * k);
        m[k] = load_full(a.exp_avg + first + 4 * k);
        v[k] = load_full(a.exp_avg_sq + first + 4 * k);
      }
      float weights[kElements];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        float gradient[4], weight[4], first_moment[4], second_moment[4];
        unpack<float>(g[k], gradient);
        unpack<float>(w[k], weight);
        unpack<float>(m[k], first_moment);
        unpack<float>(v[k], second_moment);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          State s{weight[j], first_moment[j], second_moment[j]};
          step_element(s, gradient[j], c);
          weight[j] = s.w, first_moment[j] = s.m, second_moment[j] = s.v;
          weights[4 * k + j] = s.w;
        }
        store_full(a.exp_avg + first + 4 * k, pack<float>(first_moment));
        store_full(a.exp_avg_sq + first + 4 * k, pack<float>(second_moment));
        store_full(a.main_param + first + 4 * k, pack<float>(weight));
      }
      if constexpr (sizeof(T) == 2) {
        store_full(a.param + first, pack<T>(weights));
      } else if (a.separate) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const float half[4] = {weights[4 * k], weights[4 * k + 1], weights[4 * k + 2], weights[4 * k + 3]};
          store_full(a.param + first + 4 * k, pack<T>(half));
        }
      }
      continue;
    }
    for (std::int64_t i = first; i < first + kElements && i < a.count; ++i) {
      State s{a.main_param[i], a.exp_avg[i], a.exp_avg_sq[i]};
      step_element(s, a.grad[i], c);
      a.exp_avg[i] = s.m;
      a.exp_avg_sq[i] = s.v;
      a.main_param[i] = s.w;
      if (a.separate) a.param[i] = narrow<T>(s.w);
    }
  }
}

}  // namespace

void run(CudaStream& stream, const AdamW& op) {
  const bool vector = starts_aligned(op.param.data) && starts_aligned(op.main_param.data) &&
                      starts_aligned(op.grad.data) && starts_aligned(op.exp_avg.data) &&
                      starts_aligned(op.exp_avg_sq.data);
  const std::int64_t most = stream.multiprocessors() * kBlocksPerMultiprocessor;
  const auto blocks =
      static_cast<unsigned>(std::min<std::int64_t>(blocks_for(op.param.numel(), kThreads * kElements), most));
  visit_kernel(op.param.dtype, vector, [&](auto type, auto is_vector) {
    using T = decltype(type);
    const AdamWArguments<T> a{.param = op.param.as<T>(),
                              .main_param = op.main_param.as<float>(),
                              .exp_avg = op.exp_avg.as<float>(),
                              .exp_avg_sq = op.exp_avg_sq.as<float>(),
                              .grad = op.grad.as<const float>(),
                              .count = op.param.numel(),
                              .beta1 = op.beta1,
                              .beta2 = op.beta2,
                              .eps = op.eps,
                              .weight_decay = op.weight_decay,
                              .parameters = op.parameters,
                              .separate = op.param.data != op.main_param.data};
    adamw<T, is_vector()><<<blocks, kThreads, 0, stream.handle()>>>(a);
  });
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

}  // namespace megalith
