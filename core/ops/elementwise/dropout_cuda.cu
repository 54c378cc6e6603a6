// In bf16 nearly equally memory- and compute-bound, otherwise memory-bound; one pass; elementwise, so deterministic.
// Four threads own 32 neighboring columns of a row, eight each. A Philox block serves columns c, c + 8, c + 16 and c +
// 24: each thread makes two blocks, and the four exchange single bits (dropped or not).
#include <cmath>

#include "core/ops/cuda_launch.cuh"
#include "core/ops/cuda_pack.cuh"
#include "core/ops/cuda_philox.cuh"
#include "core/ops/cuda_reduce.cuh"
#include "core/ops/elementwise/dropout.h"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kThreads = 256;
constexpr unsigned kRounds = 4;  // items per thread, to amortize the key

struct DropoutArguments {
  Rows x, y;
  std::int64_t first_row, first_position, gap;  // first row and positions
  const MicrobatchParameters* parameters;
  std::uint64_t seed;
  unsigned rows_per_sample;
  FastDivide per_sample, per_row;  // rows; items, four per group of 32 columns
  unsigned items;
  unsigned first_group;  // group of 32 columns
  std::uint32_t layer, site, threshold;
  float scale;
  int columns;
};

// Eight columns of a row. No thread may miss the exchange of bits: past the last item, an item has no columns.
struct Item {
  unsigned row, group;  // `group`: of 32 columns
  int column, columns;

  __device__ Item(const DropoutArguments& a, unsigned number, unsigned quarter) {
    unsigned item_of_row;
    row = a.per_row.divide(min(number, a.items - 1), item_of_row);
    group = item_of_row / 4;
    column = static_cast<int>(group * 32 + quarter * 8);
    columns = number < a.items ? a.columns : 0;
  }
};

// Bit w + 4 j is set if column 8 w + j of the group of 32 is dropped; equal in the group's four threads.
__device__ inline unsigned dropped_bits(unsigned group, unsigned quarter, uint4 counter, const RoundKeys& keys,
                                        std::uint32_t threshold) {
  unsigned bits = 0;
#pragma unroll
  for (unsigned k = 0; k < 2; ++k) {
    counter.x = group * 8 + quarter * 2 + k;
    const uint4 words = philox(counter, keys);
    const unsigned nibble = (words.x < threshold ? 1u : 0u) | (words.y < threshold ? 2u : 0u) |
                            (words.z < threshold ? 4u : 0u) | (words.w < threshold ? 8u : 0u);
    bits |= nibble << 4 * (quarter * 2 + k);
  }
  bits |= __shfl_xor_sync(kAllLanes, bits, 1);
  return bits | __shfl_xor_sync(kAllLanes, bits, 2);
}

// A block owns kRounds * kThreads neighboring items.
template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads) dropout_kernel(const DropoutArguments a) {
  constexpr int kWidth = kPack<T>, kPacks = 8 / kWidth;
  const auto iteration = static_cast<std::uint64_t>(a.parameters->iteration);
  const std::int64_t first_sample = a.parameters->first_sample;
  const RoundKeys keys(
      key_for(a.seed, make_uint4(static_cast<std::uint32_t>(iteration), static_cast<std::uint32_t>(iteration >> 32),
                                 a.layer, kRngDropout | a.site)));
  const unsigned quarter = threadIdx.x % 4;
  const unsigned first_item = blockIdx.x * kRounds * kThreads + threadIdx.x;
  uint4 raw[kRounds][kPacks];
#pragma unroll
  for (unsigned round = 0; round < kRounds; ++round) {
    const Item item(a, first_item + round * kThreads, quarter);
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      raw[round][k] = load_of_row<T, kVector>(a.x.at<const T>(item.row), item.column + k * kWidth, item.columns);
    }
  }
#pragma unroll
  for (unsigned round = 0; round < kRounds; ++round) {
    const Item item(a, first_item + round * kThreads, quarter);
    const std::int64_t whole_row = a.first_row + item.row;
    std::int64_t sample, row_of_sample;
    if (whole_row < kMaxIndex) {
      unsigned rest;
      sample = a.per_sample.divide(static_cast<unsigned>(whole_row), rest);
      row_of_sample = rest;
    } else {
      sample = whole_row / a.rows_per_sample;
      row_of_sample = whole_row % a.rows_per_sample;
    }
    sample += first_sample;
    const std::int64_t position =
        a.first_position + row_of_sample + (row_of_sample >= a.rows_per_sample / 2 ? a.gap : 0);
    const uint4 counter = make_uint4(0, static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(sample),
                                     static_cast<std::uint32_t>(sample >> 32));
    const unsigned bits = dropped_bits(a.first_group + item.group, quarter, counter, keys, a.threshold) >> quarter;
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      Floats<T> v(raw[round][k]);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) v[j] = (bits >> 4 * (k * kWidth + j) & 1u) != 0 ? 0.0f : v[j] * a.scale;
      store_of_row<T, kVector>(a.y.at<T>(item.row), item.column + k * kWidth, item.columns, v.packed());
    }
  }
}

}  // namespace

void run(CudaStream& stream, const Dropout& op) {
  const std::int64_t rows = op.x.size(0), columns = op.x.size(1);
  if (rows == 0 || columns == 0) return;
  const std::int64_t items_per_row = ceil_divide(columns, 32) * 4;
  require(columns < kMaxIndex / 2 && op.rows_per_sample < kMaxIndex, "Dropout: rows or samples of more than 2^30");
  DropoutArguments a{
      .first_position = op.part.first,
      .gap = op.part.gap,
      .parameters = op.parameters,
      .seed = op.seed,
      .rows_per_sample = static_cast<unsigned>(op.rows_per_sample),
      .per_sample = FastDivide(op.rows_per_sample),
      .per_row = FastDivide(items_per_row),
      .first_group = static_cast<unsigned>(op.first_column / 32),
      .layer = static_cast<std::uint32_t>(op.layer),
      .site = static_cast<std::uint32_t>(op.site),
      .threshold = static_cast<std::uint32_t>(std::min(std::floor(static_cast<double>(op.p) * 0x1p32), 0x1p32 - 1)),
      .scale = 1.0f / (1.0f - op.p),
      .columns = static_cast<int>(columns)};
  for_pieces(rows, items_per_row, [&](std::int64_t first, std::int64_t count) {
    a.x = Rows(op.x.slice(0, first, count)), a.y = Rows(op.y.slice(0, first, count));
    a.first_row = op.first_row + first;
    a.items = static_cast<unsigned>(count * items_per_row);
    Variants(op.x.dtype, rows_aligned(op.x, op.y)).visit([&](auto type, auto is_vector) {
      launch_kernel(stream, {blocks_for(a.items, kRounds * kThreads), kThreads},
                    dropout_kernel<decltype(type), is_vector()>, a);
    });
  });
}

}  // namespace megalith
