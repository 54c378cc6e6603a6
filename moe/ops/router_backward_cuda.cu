// Gradient of the logits, and router losses. Memory-bound: a warp processes one token at a time. It reads the logits
// once, if required, and writes the gradient once.
#include "moe/ops/cuda_router.cuh"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kAddThreads = 256;

struct BackwardArguments {
  const void* logits;  // of Real; null: not required
  const std::int32_t* choice;
  const float *weight, *d_weight;
  const float* loads;                      // null: no load-balancing loss
  const MicrobatchParameters* parameters;  // null: no losses
  float* d_logits;
  std::int64_t tokens;
  int experts, choices;
  RouterScore score;
  float inverse_scaling, z_scale;
};

// Lane k's choice, the gradient of its logit, and D, the sum of w d_weight over the choices:
//   softmax of the chosen: w (d_weight - D / s);  sigmoid: the same times 1 - sigmoid(x), without D if K = 1
//   softmax of all: w d_weight, and each logit of the token -softmax(x) D
template <class Real>
struct ChoiceGradient {
  int expert = -1;
  Real term = 0, dot = 0;

  __device__ ChoiceGradient(const BackwardArguments& a, std::int64_t token, int lane) {
    Real weight = 0, d_weight = 0;
    if (lane < a.choices) {
      const std::int64_t at = token * a.choices + lane;
      expert = a.choice[at];
      weight = a.weight[at];
      d_weight = a.d_weight[at];
    }
    dot = warp_sum(weight * d_weight, kChoiceLanes);
    dot = __shfl_sync(kAllLanes, dot, 0);
    const bool independent = a.score == RouterScore::kSoftmax || (a.score == RouterScore::kSigmoid && a.choices == 1);
    term = weight * (independent ? d_weight : d_weight - dot * a.inverse_scaling);
    const bool valid = static_cast<unsigned>(expert) < static_cast<unsigned>(a.experts);
    if (a.score == RouterScore::kSigmoid && valid)
      term *= sigmoid(-static_cast<const Real*>(a.logits)[token * a.experts + expert]);
  }
};

// Adds to d the gradients of the lane's logits x through sums over all experts.
template <class Real, int kOwn>
__device__ inline void add_dense_gradients(const BackwardArguments& a, float scale, const Real (&x)[kOwn],
                                           const float (&load)[kOwn], Real dot, Real (&d)[kOwn]) {
  const bool is_softmax = a.score == RouterScore::kSoftmax;
  WarpSoftmax<Real> softmax{};
  if (a.score != RouterScore::kSigmoid || a.z_scale != 0) {
    softmax = warp_softmax(x);
    const Real factor = 2.0f * a.z_scale * scale * softmax.log_sum, of_weights = is_softmax ? dot : Real{0};
    if (is_softmax || a.z_scale != 0) {
#pragma unroll
      for (int j = 0; j < kOwn; ++j) d[j] = softmax.of(x[j]) * ((a.z_scale != 0 ? factor : Real{0}) - of_weights);
    }
  }
  if (a.loads == nullptr) return;
  Real p[kOwn];
  const Real mean = balance_scores(a.score, x, load, softmax, p);
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    const Real slope = a.score == RouterScore::kSigmoid ? sigmoid(-x[j]) : Real{1};
    d[j] += scale * p[j] * slope * (load[j] - mean);
  }
}

template <class Real, int kOwn, bool kVector>
__global__ void __launch_bounds__(kRouterWarps * 32) router_topk_backward_kernel(const BackwardArguments a) {
  const int lane = static_cast<int>(threadIdx.x) % 32, first = lane * kOwn;
  const float router_scale = a.parameters != nullptr ? a.parameters->router_scale : 0.0f;
  float load[kOwn] = {};
  if (a.loads != nullptr) load_loads(a.loads, first, a.experts, load);
  for (std::int64_t token = std::int64_t{blockIdx.x} * kRouterWarps + threadIdx.x / 32; token < a.tokens;
       token += std::int64_t{gridDim.x} * kRouterWarps) {
    Real x[kOwn], d[kOwn] = {};
    const Real* const logits = static_cast<const Real*>(a.logits) + token * a.experts;
    if (a.logits != nullptr) load_logits<kOwn, kVector>(logits, first, a.experts, x);
    const ChoiceGradient<Real> own(a, token, lane);
    // Padding has no losses, and its weights have no gradients.
    const bool is_padding = __shfl_sync(kAllLanes, own.expert, 0) < 0;
    if (a.logits != nullptr && !is_padding) add_dense_gradients(a, router_scale, x, load, own.dot, d);
    // All lanes read before any lane writes, since d_logits may be the logits.
    __syncwarp();
    for (int k = 0; k < a.choices; ++k) {
      const int at = __shfl_sync(kAllLanes, own.expert, k) - first;
      const Real term = __shfl_sync(kAllLanes, own.term, k);
#pragma unroll
      for (int j = 0; j < kOwn; ++j) d[j] += at == j ? term : Real{0};
    }
    float* row = a.d_logits + token * a.experts;
#pragma unroll
    for (int j = 0; j < kOwn; j += 4) {
      Floats<float> pack;
#pragma unroll
      for (int i = 0; i < 4; ++i) pack[i] = static_cast<float>(d[j + i]);
      store_of_row<float, kVector>(row, first + j, a.experts, pack.packed());
    }
  }
}

struct LoadArguments {
  const std::int32_t* offsets;
  std::int64_t step;            // distance between rows
  const std::int32_t* counted;  // null: none
  float* loads;
  int experts;
  float coeff;
  bool adds;
};

// A block owns a row. The order of integer sums does not matter.
__global__ void __launch_bounds__(kAddThreads) relative_loads_kernel(const LoadArguments a) {
  __shared__ long long shared[32];
  const std::int32_t* const offsets = a.offsets + blockIdx.x * a.step;
  float* const loads = a.loads + std::int64_t{blockIdx.x} * a.experts;
  const auto rows_of = [&](int e) {
    return static_cast<long long>(offsets[e + 1]) - offsets[e] + (a.counted != nullptr ? a.counted[e] : 0);
  };
  long long all = 0;
  for (int e = static_cast<int>(threadIdx.x); e < a.experts; e += kAddThreads) all += rows_of(e);
  all = block_sum(all, shared);
  const float scale = all > 0 ? a.coeff * static_cast<float>(a.experts) / static_cast<float>(all) : 0.0f;
  for (int e = static_cast<int>(threadIdx.x); e < a.experts; e += kAddThreads) {
    const float load = scale * static_cast<float>(rows_of(e));
    loads[e] = a.adds ? loads[e] + load : load;
  }
}

struct LossArguments {
  const void* logits;          // of Real
  const std::int32_t* choice;  // null: no padding
  std::int64_t choices;
  const float* loads;  // null: no load-balancing loss
  std::int64_t tokens;
  int experts;
  RouterScore score;
  bool z;
  double* block_sums;  // [blocks, 2]: aux, z
};

// Sums over the tokens of a block. The tokens of a block depend only on the number of tokens.
template <class Real, int kOwn, bool kVector>
__global__ void __launch_bounds__(kRouterWarps * 32) router_losses_kernel(const LossArguments a) {
  __shared__ double shared[kRouterWarps][2];
  const int lane = static_cast<int>(threadIdx.x) % 32, first = lane * kOwn, warp = static_cast<int>(threadIdx.x) / 32;
  float load[kOwn] = {};
  if (a.loads != nullptr) load_loads(a.loads, first, a.experts, load);
  double aux = 0, z = 0;
  for (std::int64_t token = std::int64_t{blockIdx.x} * kRouterWarps + warp; token < a.tokens;
       token += std::int64_t{gridDim.x} * kRouterWarps) {
    if (a.choice != nullptr && a.choice[token * a.choices] < 0) continue;
    Real x[kOwn];
    load_logits<kOwn, kVector>(static_cast<const Real*>(a.logits) + token * a.experts, first, a.experts, x);
    WarpSoftmax<Real> softmax{};
    if (a.z || a.score != RouterScore::kSigmoid) softmax = warp_softmax(x);
    const auto log_sum = static_cast<double>(softmax.log_sum);
    z += log_sum * log_sum;
    if (a.loads != nullptr) {
      Real p[kOwn];
      aux += static_cast<double>(balance_scores(a.score, x, load, softmax, p));
    }
  }
  if (lane == 0) {
    shared[warp][0] = aux;
    shared[warp][1] = z;
  }
  __syncthreads();
  if (threadIdx.x >= 2) return;
  double sum = 0;
#pragma unroll
  for (int w = 0; w < kRouterWarps; ++w) sum += shared[w][threadIdx.x];
  a.block_sums[2 * blockIdx.x + threadIdx.x] = sum;
}

// One block. A null loss is skipped.
__global__ void __launch_bounds__(kAddThreads)
    router_losses_add_kernel(const double* block_sums, int blocks, float* aux, float* z, float z_scale) {
  __shared__ double shared[32];
  double aux_sum = 0, z_sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < blocks; i += kAddThreads) {
    aux_sum += block_sums[2 * i];
    z_sum += block_sums[2 * i + 1];
  }
  aux_sum = block_sum(aux_sum, shared);
  z_sum = block_sum(z_sum, shared);
  if (threadIdx.x > 0) return;
  const auto add = [](float* to, float scale, double sum) {
    if (to != nullptr) *to = static_cast<float>(static_cast<double>(*to) + static_cast<double>(scale) * sum);
  };
  add(aux, 1, aux_sum);
  add(z, z_scale, z_sum);
}

}  // namespace

void run(CudaStream& stream, const RouterTopkBackward& op) {
  const std::int64_t experts = op.d_logits.size(1), tokens = op.d_logits.size(0);
  const bool losses = op.loads || op.z_scale != 0;
  const BackwardArguments a{.logits = needs_logits(op) ? op.logits.data : nullptr,
                            .choice = op.choice.as<const std::int32_t>(),
                            .weight = op.weight.as<const float>(),
                            .d_weight = op.d_weight.as<const float>(),
                            .loads = op.loads.as<const float>(),
                            .parameters = losses ? op.parameters : nullptr,
                            .d_logits = op.d_logits.as<float>(),
                            .tokens = tokens,
                            .experts = static_cast<int>(experts),
                            .choices = static_cast<int>(op.choice.size(1)),
                            .score = op.score,
                            .inverse_scaling = 1.0f / op.scaling_factor,
                            .z_scale = op.z_scale};
  const std::int64_t most = std::int64_t{stream.multiprocessors()} * (2048 / (kRouterWarps * 32));
  const auto blocks = static_cast<unsigned>(std::clamp<std::int64_t>(ceil_divide(tokens, kRouterWarps), 1, most));
  const bool aligned = starts_aligned(op.d_logits) && (a.logits == nullptr || starts_aligned(op.logits));
  const DType dtype = a.logits != nullptr ? op.logits.dtype : DType::kFp32;
  visit_router(dtype, experts, aligned, [&](auto real, auto own, auto is_vector) {
    constexpr auto kKernel = router_topk_backward_kernel<decltype(real), own(), is_vector()>;
    launch_kernel(stream, {blocks, kRouterWarps * 32}, kKernel, a);
  });
}

void run(CudaStream& stream, const RelativeLoads& op) {
  if (op.loads.numel() == 0) return;
  const std::int64_t experts = op.loads.size(1);
  const LoadArguments a{.offsets = op.offsets.as<const std::int32_t>(),
                        .step = op.offsets.size(0) == 1 ? 0 : experts + 1,
                        .counted = op.counted.as<const std::int32_t>(),
                        .loads = op.loads.as<float>(),
                        .experts = static_cast<int>(experts),
                        .coeff = op.coeff,
                        .adds = op.adds};
  launch_kernel(stream, {blocks_for(op.loads.size(0), 1), kAddThreads}, relative_loads_kernel, a);
}

void run(CudaStream& stream, const RouterLosses& op) {
  const std::int64_t experts = op.logits.size(1), tokens = op.logits.size(0);
  const auto blocks =
      static_cast<unsigned>(std::clamp<std::int64_t>(ceil_divide(tokens, kRouterWarps), 1, kMaxLossBlocks));
  const LossArguments a{.logits = op.logits.data,
                        .choice = op.choice.as<const std::int32_t>(),
                        .choices = op.choice ? op.choice.size(1) : 0,
                        .loads = op.aux ? op.loads.as<const float>() : nullptr,
                        .tokens = tokens,
                        .experts = static_cast<int>(experts),
                        .score = op.score,
                        .z = op.z.present(),
                        .block_sums = op.workspace.as<double>()};
  visit_router(op.logits.dtype, experts, starts_aligned(op.logits), [&](auto real, auto own, auto is_vector) {
    launch_kernel(stream, {blocks, kRouterWarps * 32}, router_losses_kernel<decltype(real), own(), is_vector()>, a);
  });
  launch_kernel(stream, {1, kAddThreads}, router_losses_add_kernel, op.workspace.as<const double>(),
                static_cast<int>(blocks), op.aux.as<float>(), op.z.as<float>(), op.z_scale);
}

}  // namespace megalith
