// Epilogue of the M-grouped GEMMs. Dedicated warps run it while consumers multiply the next tile. Eight threads share a
// row of the tile in shared memory, and each owns 8 of every 64 columns.
#pragma once

#include "moe/ops/grouped_gemm/grouped_gemm_hopper_traits.cuh"
#include "moe/ops/routed_swiglu.cuh"

namespace megalith::cuda::hopper {

// Computes two values of w round(silu(gate) up).
__device__ inline unsigned weighted_swiglu(unsigned gate, unsigned up, float weight) {
  const float2 g = unpack_bf16x2(gate), u = unpack_bf16x2(up);
  return pack_bf16x2(routed_output(routed_activation<bf16>(g.x, u.x), weight),
                     routed_output(routed_activation<bf16>(g.y, u.y), weight));
}

// Two values: gradients replace gate and up, and forward's y replaces dy.
__device__ inline void swiglu_backward(unsigned& dy, float weight, unsigned& gate, unsigned& up, float& sum) {
  const float2 g = unpack_bf16x2(gate), u = unpack_bf16x2(up), d = unpack_bf16x2(dy);
  const RoutedGradient x = routed_gradient<bf16>(g.x, u.x, d.x, weight, sum);
  const RoutedGradient y = routed_gradient<bf16>(g.y, u.y, d.y, weight, sum);
  dy = pack_bf16x2(x.y, y.y);
  gate = pack_bf16x2(x.gate, y.gate);
  up = pack_bf16x2(x.up, y.up);
}

__device__ inline void store(Bf16* to, uint4 v, bool live) {
  if (live) *reinterpret_cast<uint4*>(to) = v;
}

// Stores one consumer's rows of the tile, unchanged or with SwiGLU.
template <class Traits>
__device__ inline void store_rows(const MGroupedArguments& p, const MGroupedSharedStorage<Traits>& shared, int consumer,
                                  std::int64_t first_row, int live_rows, int first_column, bool second) {
  const int thread = Traits::epilogue_thread(), chunk = thread % 8;
  const auto product = [&](int c, int row) {
    return load_shared(shared_address(shared.c[c]) + swizzle_offset(row, chunk));
  };
#pragma unroll 2
  for (int down = thread / 8; down < kWgmmaM; down += Traits::kEpilogueThreads / 8) {
    const int row = consumer * kWgmmaM + down;
    const bool row_lives = row < live_rows;
    const std::int64_t r = first_row + row;
    const auto inside = [&](int c) { return row_lives && first_column + 64 * c + chunk * 8 < p.columns; };
    if constexpr (Traits::kEpilogue == Epilogue::kStore) {
      Bf16* to = p.c + r * p.c_stride + first_column + (second ? p.columns : 0) + chunk * 8;
#pragma unroll
      for (int c = 0; c < Traits::kBlockN / 64; ++c) store(to + 64 * c, product(c, row), inside(c));
    } else {
      const float weight = row_lives ? p.row_weight[r] : 0;
      Bf16* h = p.c + r * 2 * p.columns + first_column + chunk * 8;
      Bf16* y = p.y + r * p.columns + first_column + chunk * 8;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const uint4 g = product(c, row), u = product(c + 2, row);
        store(h + 64 * c, g, inside(c));
        store(h + p.columns + 64 * c, u, inside(c));
        const uint4 v = {weighted_swiglu(g.x, u.x, weight), weighted_swiglu(g.y, u.y, weight),
                         weighted_swiglu(g.z, u.z, weight), weighted_swiglu(g.w, u.w, weight)};
        store(y + 64 * c, v, inside(c));
      }
    }
  }
}

// A thread's part of a row of h: 8 gates and ups for every 64 columns of the tile.
template <int kBlockN>
struct HiddenRow {
  uint4 gate[kBlockN / 64], up[kBlockN / 64];
  float weight = 0;

  __device__ void load(const MGroupedArguments& p, std::int64_t row, int first_column, bool lives) {
    weight = lives ? p.row_weight[row] : 0;
    const Bf16* at = p.h + row * 2 * p.columns + first_column;
#pragma unroll
    for (int c = 0; c < kBlockN / 64; ++c) {
      gate[c] = up[c] = make_uint4(0, 0, 0, 0);
      if (!lives || first_column + 64 * c >= p.columns) continue;
      gate[c] = *reinterpret_cast<const uint4*>(at + 64 * c);
      up[c] = *reinterpret_cast<const uint4*>(at + p.columns + 64 * c);
    }
  }
};

// Stores SwiGLU's gradient of one consumer's rows. A row's part of h is loaded while the previous row is computed.
template <class Traits>
__device__ inline void store_swiglu_backward(const MGroupedArguments& p, MGroupedSharedStorage<Traits>& shared,
                                             int consumer, unsigned phase, std::int64_t first_row, int live_rows,
                                             int first_column) {
  constexpr int kBlockN = Traits::kBlockN;
  const int thread = Traits::epilogue_thread(), chunk = thread % 8;
  constexpr int kStep = Traits::kEpilogueThreads / 8, kTimes = (kWgmmaM + kStep - 1) / kStep;
  const auto row_of = [&](int i) { return thread / 8 + i * kStep; };  // row in the consumer's tile
  const auto lives = [&](int i) { return row_of(i) < kWgmmaM && consumer * kWgmmaM + row_of(i) < live_rows; };
  HiddenRow<kBlockN> next;
  const auto fetch = [&](int i) {
    next.load(p, first_row + consumer * kWgmmaM + row_of(i), first_column + chunk * 8, lives(i));
  };
  fetch(0);
  mbarrier_wait(shared_address(&shared.c_full_barriers[consumer]), phase);
#pragma unroll 1
  for (int i = 0; i < kTimes; ++i) {
    HiddenRow<kBlockN> now = next;
    if (i + 1 < kTimes) fetch(i + 1);
    if (row_of(i) >= kWgmmaM) continue;
    const int row = consumer * kWgmmaM + row_of(i);
    const std::int64_t r = first_row + row, at = r * 2 * p.columns + first_column + chunk * 8;
    float sums[kBlockN / 64];
#pragma unroll
    for (int c = 0; c < kBlockN / 64; ++c) {
      uint4 d = load_shared(shared_address(shared.c[c]) + swizzle_offset(row, chunk));
      float sum = 0;
      swiglu_backward(d.x, now.weight, now.gate[c].x, now.up[c].x, sum);
      swiglu_backward(d.y, now.weight, now.gate[c].y, now.up[c].y, sum);
      swiglu_backward(d.z, now.weight, now.gate[c].z, now.up[c].z, sum);
      swiglu_backward(d.w, now.weight, now.gate[c].w, now.up[c].w, sum);
      const bool exists = first_column + chunk * 8 + 64 * c < p.columns, inside = lives(i) && exists;
      store(p.c + at + 64 * c, now.gate[c], inside);
      store(p.c + at + p.columns + 64 * c, now.up[c], inside);
      store(p.y + r * p.columns + first_column + chunk * 8 + 64 * c, d, inside);
      sums[c] = exists ? sum : 0;  // beyond the columns, an infinite dy times 0 would be NaN
    }
#pragma unroll
    for (int c = 0; c < kBlockN / 64; ++c) sums[c] = sum_of_packs(sums[c]);
    const int all = ceil_div(p.columns, kPartialColumns);
#pragma unroll
    for (int c = 0; c < kBlockN / 64; ++c) {
      if (chunk == c && lives(i) && first_column + 64 * c < p.columns) {
        p.partial[r * all + first_column / 64 + c] = sums[c];
      }
    }
  }
}

// Runs the epilogue warps, for all tiles of the block.
template <class Traits>
__device__ inline void run_epilogue(const MGroupedArguments& p, MGroupedSharedStorage<Traits>& shared) {
  unsigned phase[kConsumers] = {0, 0};
  for (MGroupedTileScheduler<Traits> tile(p, shared); tile.found; tile.next()) {
#pragma unroll
    for (int consumer = 0; consumer < kConsumers; ++consumer) {
      if (tile.live_rows <= consumer * kWgmmaM) continue;
      if constexpr (Traits::kEpilogue == Epilogue::kSwigluBackward) {
        store_swiglu_backward(p, shared, consumer, phase[consumer], tile.first_row, tile.live_rows, tile.column);
      } else {
        mbarrier_wait(shared_address(&shared.c_full_barriers[consumer]), phase[consumer]);
        store_rows(p, shared, consumer, tile.first_row, tile.live_rows, tile.column, tile.second);
      }
      phase[consumer] ^= 1;
      __syncwarp();
      if (threadIdx.x % 32 == 0) mbarrier_arrive(shared_address(&shared.c_empty_barriers[consumer]));
    }
  }
}

}  // namespace megalith::cuda::hopper
