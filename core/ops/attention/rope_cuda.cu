// Memory-bound, one pass. A block owns a few positions of some samples. It computes their cosines and sines in fp64,
// rounds them into shared memory, and rotates all heads. A thread owns a pack of the lower half of a head and its
// partner. Elementwise, so deterministic.
#include "core/ops/attention/rope.h"
#include "core/ops/cuda_launch.cuh"
#include "core/ops/cuda_pack.cuh"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kThreads = 256;
constexpr std::int64_t kBlocks = 1056;  // reached ahead of giving a block more samples

struct RopeArguments {
  const void* x;
  void* y;
  std::int64_t x_strides[3], y_strides[3];  // strides of sample, token and head
  const std::int32_t* start;
  const std::int32_t* row_positions;  // of the rows; null: start, first and gap give them
  std::int64_t first, gap;            // first position and gap
  RopeFrequencies frequencies;
  int samples, tokens, heads, dim, pairs;
  int positions;         // positions of a block
  int samples_of_block;  // samples of a block
  FastDivide packs_of_head, heads_of_token, tokens_of_block;
  bool backward;
};

// One head's rotated dims that a thread owns.
template <class T, bool kVector>
__device__ inline void rotate(const T* x, T* y, int first, int pairs, const float* cosine, const float* sine) {
  constexpr int kWidth = kPack<T>;
  Floats<T> low(load_of_row<T, kVector>(x, first, pairs)), high(load_of_row<T, kVector>(x + pairs, first, pairs));
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const bool inside = kVector || first + j < pairs;
    const float c = inside ? cosine[first + j] : 0.0f, s = inside ? sine[first + j] : 0.0f;
    const float turned = fmaf(-high[j], s, low[j] * c);
    high[j] = fmaf(low[j], s, high[j] * c);
    low[j] = turned;
  }
  store_of_row<T, kVector>(y, first, pairs, low.packed());
  store_of_row<T, kVector>(y + pairs, first, pairs, high.packed());
}

template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads) rope_kernel(const RopeArguments a) {
  constexpr int kWidth = kPack<T>;
  extern __shared__ float tables[];  // [2][positions][pairs]
  float* sines = tables + a.positions * a.pairs;
  const int first_token = static_cast<int>(blockIdx.x) * a.positions;
  const int tokens = min(a.positions, a.tokens - first_token);
  const int first_sample = static_cast<int>(blockIdx.y) * a.samples_of_block;
  const int samples = min(a.samples_of_block, a.samples - first_sample);
  let_next_grid_start();
  const auto frequency_of = [&a](int i) { return a.frequencies[i % a.pairs]; };
  const int begin = static_cast<int>(threadIdx.x);
  double frequency = begin < tokens * a.pairs ? frequency_of(begin) : 0;  // overlaps the end of the previous grids
  wait_for_previous_grids();
  const std::int64_t start = a.start == nullptr ? 0 : *a.start;
  for (int i = begin; i < tokens * a.pairs; i += kThreads) {
    if (i != begin) frequency = frequency_of(i);
    const int token = first_token + i / a.pairs;
    std::int64_t position = start + a.first + token + (token >= a.tokens / 2 ? a.gap : 0);
    if (a.row_positions != nullptr) position = max(a.row_positions[std::int64_t{first_sample} * a.tokens + token], 0);
    double s, c;
    sincos(static_cast<double>(position) * frequency, &s, &c);
    tables[i] = static_cast<float>(a.frequencies.attention_factor * c);
    sines[i] = static_cast<float>(a.frequencies.attention_factor * (a.backward ? -s : s));
  }
  __syncthreads();

  const int head_packs = (a.pairs + kWidth - 1) / kWidth;
  const auto items = static_cast<unsigned>(samples * a.positions * a.heads * head_packs);
  for (unsigned item = threadIdx.x; item < items; item += kThreads) {
    unsigned pack_of_head, head, token;
    unsigned rest = a.packs_of_head.divide(item, pack_of_head);
    rest = a.heads_of_token.divide(rest, head);
    const std::int64_t sample = first_sample + static_cast<std::int64_t>(a.tokens_of_block.divide(rest, token));
    if (static_cast<int>(token) >= tokens) continue;
    const std::int64_t at = first_token + static_cast<std::int64_t>(token);
    const T* x = static_cast<const T*>(a.x) + sample * a.x_strides[0] + at * a.x_strides[1] + head * a.x_strides[2];
    T* y = static_cast<T*>(a.y) + sample * a.y_strides[0] + at * a.y_strides[1] + head * a.y_strides[2];
    const int table = static_cast<int>(token) * a.pairs;
    rotate<T, kVector>(x, y, static_cast<int>(pack_of_head) * kWidth, a.pairs, tables + table, sines + table);
    if (x == y) continue;
    for (int i = 2 * a.pairs + static_cast<int>(pack_of_head); i < a.dim; i += head_packs) y[i] = x[i];
  }
}

}  // namespace

void run(CudaStream& stream, const Rope& op) {
  if (op.x.numel() == 0) return;
  for (int d = 0; d < 4; ++d) require(op.x.size(d) < kMaxIndex / 2, "Rope: a dim of more than 2^30");
  const auto size = [&op](int d) { return static_cast<int>(op.x.size(d)); };
  const std::int64_t pairs = op.rotary_dim / 2;
  const std::int64_t element = static_cast<std::int64_t>(size_of(op.x.dtype));
  const bool vector = rows_aligned(op.x, op.y) && pairs * element % 16 == 0;
  const std::int64_t head_packs = ceil_divide(pairs * element, 16);
  const std::int64_t positions = std::clamp<std::int64_t>(kThreads / pairs, 1, op.x.size(1));
  const std::int64_t tiles = ceil_divide(op.x.size(1), positions);
  // Few samples a block if there are few positions, within 32-bit item numbers.
  const std::int64_t items_of_sample = positions * op.x.size(2) * head_packs;
  require(items_of_sample < kMaxIndex && tiles < kMaxIndex, "Rope: too many heads");
  std::int64_t samples = std::max<std::int64_t>(1, op.x.size(0) * tiles / kBlocks);
  samples = std::min({samples, op.x.size(0), (kMaxIndex - 1) / items_of_sample});
  if (op.positions) samples = 1;                                  // a block's table is of one sample's rows
  samples = std::max(samples, ceil_divide(op.x.size(0), 65535));  // limit of a grid's second dim
  require(!op.positions || samples == 1, "Rope: more than 65535 samples with positions");
  const RopeArguments a{.x = op.x.data,
                        .y = op.y.data,
                        .x_strides = {op.x.stride(0), op.x.stride(1), op.x.stride(2)},
                        .y_strides = {op.y.stride(0), op.y.stride(1), op.y.stride(2)},
                        .start = op.start,
                        .row_positions = op.positions.as<const std::int32_t>(),
                        .first = op.part.first,
                        .gap = op.part.gap,
                        .frequencies = rope_frequencies(static_cast<double>(op.theta), pairs, op.scaling),
                        .samples = size(0),
                        .tokens = size(1),
                        .heads = size(2),
                        .dim = size(3),
                        .pairs = static_cast<int>(pairs),
                        .positions = static_cast<int>(positions),
                        .samples_of_block = static_cast<int>(samples),
                        .packs_of_head = FastDivide(head_packs),
                        .heads_of_token = FastDivide(op.x.size(2)),
                        .tokens_of_block = FastDivide(positions),
                        .backward = op.backward};
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(ceil_divide(op.x.size(0), samples)));
  const std::size_t shared = 2 * sizeof(float) * static_cast<std::size_t>(positions * pairs);
  Variants(op.x.dtype, vector).visit([&](auto type, auto is_vector) {
    launch_early(stream, {grid, kThreads, shared}, rope_kernel<decltype(type), is_vector()>, a);
  });
}

}  // namespace megalith
