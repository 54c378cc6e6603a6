// A block owns a row, which stays in L2 after its first pass. Bisection over the logits' ordered bits, two bits a pass,
// finds the cuts of top_k and top_p without sorting. Weights are summed as fixed-point integers, so that sums are exact
// in any order. Latency-bound: rows are few. Deterministic; needs no workspace.
#include <cfloat>
#include <climits>
#include <cmath>

#include "core/device/cuda/fault.cuh"
#include "core/ops/cuda_launch.cuh"
#include "core/ops/cuda_pack.cuh"
#include "core/ops/cuda_philox.cuh"
#include "core/ops/cuda_reduce.cuh"
#include "core/ops/data_faults.h"
#include "core/ops/token/sampling.h"

namespace megalith {

namespace {

using namespace cuda;

using Mass = unsigned long long;

constexpr int kThreads = 1024;

// Returns a key that orders like the logits: sixteen bits for bf16, 32 for fp32. -0 counts as 0.
template <class T>
__device__ inline unsigned ordered_bits(float x) {
  const unsigned bits = __float_as_uint(x + 0.0f);
  const unsigned ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return sizeof(T) == 2 ? ordered >> 16 : ordered;
}

template <class T, bool kVector>
struct LogitRow {
  const T* x;
  int vocab, columns;

  // Calls visit(index, logit) in an order that depends on the shape alone.
  template <class Visit>
  __device__ void each(Visit&& visit) const {
    constexpr int kWidth = kPack<T>;
#pragma unroll 4
    for (int first = static_cast<int>(threadIdx.x) * kWidth; first < vocab; first += kThreads * kWidth) {
      const Floats<T> v(load_of_row<T, kVector>(x, first, columns));
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        if (first + j < vocab) visit(first + j, v[j]);
      }
    }
  }
};

// Returns the first of the largest logits, in all threads; -1 if there is none above -inf.
template <class Row>
__device__ int first_largest(const Row& row, Mass* shared) {
  Mass best = 0;
  row.each([&best](int index, float logit) {
    if (!(logit > -INFINITY)) return;
    const Mass key = static_cast<Mass>(ordered_bits<float>(logit)) << 32 | (0xFFFFFFFFu - static_cast<unsigned>(index));
    best = key > best ? key : best;
  });
  best = block_reduce(best, Mass{0}, shared, [](Mass a, Mass b) { return a > b ? a : b; });
  return best == 0 ? -1 : static_cast<int>(0xFFFFFFFFu - static_cast<unsigned>(best));
}

struct SampleArguments {
  Rows logits;
  std::int64_t rows;
  int vocab, columns;
  float temperature;
  int top_k;
  double top_p;
  std::uint64_t seed;
  const std::int32_t* position;
  const std::int32_t* streams;  // by row; null: its index
  std::int32_t* out;
  CudaFault* fault;
  CudaFault::Raise raise;
  double unit;  // unit of fixed-point weights, a power of two: a row's sum stays below 2^63
};

template <class T, bool kVector>
__device__ int pick_largest(const LogitRow<T, kVector>& row, const SampleArguments& a, Mass* shared) {
  const int largest = first_largest(row, shared);
  if (largest < 0 && threadIdx.x == 0) report_fault(a.fault, a.raise, blockIdx.x);
  return largest;
}

template <class T, bool kVector>
__device__ LogitRow<T, kVector> row_of_block(const SampleArguments& a) {
  return {a.logits.at<const T>(blockIdx.x), a.vocab, a.columns};
}

// Set of candidates: logits above the cut, and those equal to it up to an index.
struct Cut {
  unsigned key = 0;
  int last_equal = INT_MAX;
  __device__ bool keeps(unsigned key_, int index) const { return key_ > key || (key_ == key && index <= last_equal); }
};

// Tokens with their measure: 1, or the weight exp((logit - max) / temperature).
template <class T, bool kVector>
struct Candidates {
  LogitRow<T, kVector> row;
  float max, temperature;
  double unit;
  Cut cut;
  Mass* shared;  // 32

  __device__ Mass mass_of(float logit) const {
    const float weight = expf((logit - max) / temperature);
    return weight >= FLT_MIN ? static_cast<Mass>(static_cast<double>(weight) * unit) : 0;
  }
  template <bool kCount>
  __device__ Mass measure(int index, float logit) const {
    if (!cut.keeps(ordered_bits<T>(logit), index)) return 0;
    if constexpr (!kCount) return mass_of(logit);
    return expf((logit - max) / temperature) >= FLT_MIN ? 1 : 0;
  }
  template <bool kCount>
  __device__ Mass total() const {
    Mass sum = 0;
    row.each([&](int index, float logit) { sum += measure<kCount>(index, logit); });
    return block_sum(sum, shared);
  }

  // Returns the first index up to which the measures of the tokens selected by `counts` exceed `target`.
  template <bool kCount, class Counts>
  __device__ int find(Mass target, Counts&& counts) const {
    constexpr int kWidth = kPack<T>;
    __shared__ int found;
    __syncthreads();
    if (threadIdx.x == 0) found = row.vocab - 1;
    Mass before = 0;  // sum of earlier tiles
    for (int tile = 0; tile < row.vocab; tile += kThreads * kWidth) {
      const int first = tile + static_cast<int>(threadIdx.x) * kWidth;
      const Floats<T> v(load_of_row<T, kVector>(row.x, first, row.columns));
      Mass measures[kWidth], mine = 0;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const bool inside = first + j < row.vocab && counts(first + j, v[j]);
        measures[j] = inside ? measure<kCount>(first + j, v[j]) : 0;
        mine += measures[j];
      }
      Mass up_to = mine;  // inclusive sum over the block's threads
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const Mass other = __shfl_up_sync(kAllLanes, up_to, step);
        if (threadIdx.x % 32 >= step) up_to += other;
      }
      __syncthreads();
      if (threadIdx.x % 32 == 31) shared[threadIdx.x / 32] = up_to;
      __syncthreads();
      Mass whole = 0;
      for (unsigned w = 0; w < kThreads / 32; ++w) {
        if (w < threadIdx.x / 32) up_to += shared[w];
        whole += shared[w];
      }
      Mass sum = before + up_to - mine;
      if (sum <= target && sum + mine > target) {  // true in one thread
        int index = first;
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          sum += measures[j];
          if (sum <= target) index = first + j + 1;
        }
        found = index;
      }
      before += whole;
      if (before > target) break;
    }
    __syncthreads();
    return found;
  }

  // Cuts to the fewest tokens, larger logits first and ties by lower index, whose measures reach `target`. `target` is
  // from 1 to their total.
  template <bool kCount>
  __device__ void cut_to(Mass target) {
    constexpr int kBits = 8 * sizeof(T);
    unsigned key = 0;  // largest key with measure(logits from key on) >= target, built from its top bits down
    for (int shift = kBits - 2; shift >= 0; shift -= 2) {
      Mass sums[3] = {0, 0, 0};
      row.each([&](int index, float logit) {
        const unsigned bits = ordered_bits<T>(logit);
        if (bits < (key | 1u << shift)) return;
        const Mass m = measure<kCount>(index, logit);
        sums[0] += m;
        if (bits >= (key | 2u << shift)) sums[1] += m;
        if (bits >= (key | 3u << shift)) sums[2] += m;
      });
#pragma unroll
      for (int c = 0; c < 3; ++c) sums[c] = block_sum(sums[c], shared);
      const unsigned digit = sums[2] >= target ? 3 : sums[1] >= target ? 2 : sums[0] >= target ? 1 : 0;
      key |= digit << shift;
    }
    Mass above = 0, equal = 0;
    row.each([&](int index, float logit) {
      const unsigned bits = ordered_bits<T>(logit);
      if (bits < key) return;
      const Mass m = measure<kCount>(index, logit);
      if (bits > key) above += m;
      if (bits == key) equal += m;
    });
    above = block_sum(above, shared);
    equal = block_sum(equal, shared);
    int last = cut.key == key ? cut.last_equal : INT_MAX;
    if (above + equal > target) {
      last = find<kCount>(target - above - 1, [key](int, float logit) { return ordered_bits<T>(logit) == key; });
    }
    cut = {key, last};
  }
};

template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads) sample_kernel(const SampleArguments a) {
  __shared__ Mass shared[32];
  start_early();
  if (blockIdx.x >= a.rows) return;
  const auto row = row_of_block<T, kVector>(a);
  const int largest = pick_largest(row, a, shared);
  if (largest < 0) return;
  if (a.temperature == 0 || a.top_k == 1) {
    if (threadIdx.x == 0) a.out[blockIdx.x] = largest;
    return;
  }
  Candidates<T, kVector> candidates{row, widen(row.x[largest]), a.temperature, a.unit, {}, shared};
  if (a.top_k > 0) {
    const auto kept = static_cast<Mass>(a.top_k);
    if (candidates.template total<true>() > kept) candidates.template cut_to<true>(kept);
  }
  if (a.top_p > 0 && a.top_p < 1) {
    const Mass total = candidates.template total<false>();
    const double wanted = ceil(a.top_p * static_cast<double>(total));
    if (total > 0) candidates.template cut_to<false>(wanted < 1 ? 1 : static_cast<Mass>(wanted));
  }
  const Mass total = candidates.template total<false>();
  int drawn = largest;
  if (total > 0) {  // otherwise the largest logit is +inf
    const DeviceKey key = key_for(a.seed, make_uint4(0, 0, 0, kRngSampling));
    const unsigned stream = a.streams == nullptr ? blockIdx.x : static_cast<unsigned>(a.streams[blockIdx.x]);
    const uint4 words = philox(make_uint4(static_cast<unsigned>(*a.position), stream, 0, 0), key);
    const auto target = static_cast<Mass>(uniform_number(words.x, words.y) * static_cast<double>(total));
    drawn = candidates.template find<false>(target < total ? target : total - 1, [](int, float) { return true; });
  }
  if (threadIdx.x == 0) a.out[blockIdx.x] = drawn;
}

__global__ void next_position_kernel(std::int32_t* start, std::int32_t* position) {
  start_early();
  *start = (*position)++;
}

SampleArguments arguments_of(CudaStream& stream, const Tensor& logits, std::int64_t vocab, const Tensor& out) {
  require(logits.size(1) < kMaxIndex / 2, "logits of more than 2^30 columns");
  return {.logits = Rows(logits),
          .rows = logits.size(0),
          .vocab = static_cast<int>(vocab),
          .columns = static_cast<int>(logits.size(1)),
          .out = out.as<std::int32_t>(),
          .fault = stream.fault(),
          .raise = raise_no_logits,
          .unit = std::ldexp(1.0, 62 - std::bit_width(static_cast<std::uint64_t>(vocab - 1)))};
}

}  // namespace

void run(CudaStream& stream, const Sample& op) {
  SampleArguments a = arguments_of(stream, op.logits, op.vocab_size, op.out);
  a.temperature = op.temperature;
  a.top_k = op.top_k;
  a.top_p = static_cast<double>(op.top_p);
  a.seed = op.seed;
  a.position = op.position;
  a.streams = op.streams.as<const std::int32_t>();
  Variants(op.logits.dtype, rows_aligned(op.logits)).visit([&](auto type, auto is_vector) {
    launch_early(stream, {blocks_for(a.rows, 1), kThreads}, sample_kernel<decltype(type), is_vector()>, a);
  });
}

void run(CudaStream& stream, const NextPosition& op) {
  launch_early(stream, {1, 1}, next_position_kernel, op.start, op.position);
}

}  // namespace megalith
