// What follows the product of grouped_gemm_hopper_mainloop.cuh, while the next one runs: eight threads share a row of
// the tile in shared memory, 8 columns each of 64.
#pragma once

#include "moe/ops/grouped_gemm_hopper_traits.cuh"
#include "moe/ops/routed_swiglu.cuh"

namespace megalith::cuda::hopper {

// Two values of w round(silu(gate) up).
__device__ inline unsigned weighted_swiglu(unsigned gate, unsigned up, float weight) {
  const float2 g = unpacked(gate), u = unpacked(up);
  return packed(routed_output(routed_activation<bf16>(g.x, u.x), weight),
                routed_output(routed_activation<bf16>(g.y, u.y), weight));
}

// Two values: dy's gradients take the places of gate and up, the forward's y that of dy.
__device__ inline void swiglu_backward(unsigned& dy, float weight, unsigned& gate, unsigned& up, float& sum) {
  const float2 g = unpacked(gate), u = unpacked(up), d = unpacked(dy);
  const RoutedGradient x = routed_gradient<bf16>(g.x, u.x, d.x, weight, sum);
  const RoutedGradient y = routed_gradient<bf16>(g.y, u.y, d.y, weight, sum);
  dy = packed(x.y, y.y);
  gate = packed(x.gate, y.gate);
  up = packed(x.up, y.up);
}

__device__ inline void store(Bf16* to, uint4 v, bool live) {
  if (live) *reinterpret_cast<uint4*>(to) = v;
}

// One half of the rows, stored as they are or with SwiGLU.
template <class Form>
__device__ inline void finish_half(const RowsArguments& p, const RowsMemory<Form>& memory, int half,
                                   std::int64_t first_row, int live, int first, bool second) {
  const int thread = Form::finishing_thread(), pack = thread % 8;
  const auto product = [&](int c, int row) {
    return load_shared(shared_address(memory.product[c]) + row * 128 + ((pack ^ row % 8) << 4));
  };
#pragma unroll 2
  for (int down = thread / 8; down < kHalf; down += Form::kFinishing / 8) {
    const int row = half * kHalf + down;
    const bool row_lives = row < live;
    const std::int64_t r = first_row + row;
    const auto inside = [&](int c) { return row_lives && first + 64 * c + pack * 8 < p.columns; };
    if constexpr (Form::kEpilogue == Epilogue::kStore) {
      Bf16* to = p.c + r * p.c_stride + first + (second ? p.columns : 0) + pack * 8;
#pragma unroll
      for (int c = 0; c < Form::kColumns / 64; ++c) store(to + 64 * c, product(c, row), inside(c));
    } else {
      const float weight = row_lives ? p.row_weight[r] : 0;
      Bf16* h = p.c + r * 2 * p.columns + first + pack * 8;
      Bf16* y = p.y + r * p.columns + first + pack * 8;
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

// A row's part of h: 8 gates and ups in each of the tile's 64 columns.
template <int kColumns>
struct HiddenRow {
  uint4 gate[kColumns / 64], up[kColumns / 64];
  float weight = 0;

  __device__ void load(const RowsArguments& p, std::int64_t row, int first, bool lives) {
    weight = lives ? p.row_weight[row] : 0;
    const Bf16* at = p.h + row * 2 * p.columns + first;
#pragma unroll
    for (int c = 0; c < kColumns / 64; ++c) {
      gate[c] = up[c] = make_uint4(0, 0, 0, 0);
      if (!lives || first + 64 * c >= p.columns) continue;
      gate[c] = *reinterpret_cast<const uint4*>(at + 64 * c);
      up[c] = *reinterpret_cast<const uint4*>(at + p.columns + 64 * c);
    }
  }
};

// One half of the rows: SwiGLU's gradient. What a row needs of h is fetched while the row before is computed.
template <class Form>
__device__ inline void finish_swiglu_backward(const RowsArguments& p, RowsMemory<Form>& memory, int half,
                                              unsigned round, std::int64_t first_row, int live, int first) {
  constexpr int kColumns = Form::kColumns;
  const int thread = Form::finishing_thread(), pack = thread % 8;
  constexpr int kStep = Form::kFinishing / 8, kTimes = (kHalf + kStep - 1) / kStep;
  const auto row_of = [&](int i) { return thread / 8 + i * kStep; };  // of the half
  const auto lives = [&](int i) { return row_of(i) < kHalf && half * kHalf + row_of(i) < live; };
  HiddenRow<kColumns> next;
  const auto fetch = [&](int i) { next.load(p, first_row + half * kHalf + row_of(i), first + pack * 8, lives(i)); };
  fetch(0);
  barrier_wait(shared_address(&memory.product_full[half]), round);
#pragma unroll 1
  for (int i = 0; i < kTimes; ++i) {
    HiddenRow<kColumns> now = next;
    if (i + 1 < kTimes) fetch(i + 1);
    if (row_of(i) >= kHalf) continue;
    const int row = half * kHalf + row_of(i);
    const std::int64_t r = first_row + row, at = r * 2 * p.columns + first + pack * 8;
    float sums[kColumns / 64];
#pragma unroll
    for (int c = 0; c < kColumns / 64; ++c) {
      uint4 d = load_shared(shared_address(memory.product[c]) + row * 128 + ((pack ^ row % 8) << 4));
      float sum = 0;
      swiglu_backward(d.x, now.weight, now.gate[c].x, now.up[c].x, sum);
      swiglu_backward(d.y, now.weight, now.gate[c].y, now.up[c].y, sum);
      swiglu_backward(d.z, now.weight, now.gate[c].z, now.up[c].z, sum);
      swiglu_backward(d.w, now.weight, now.gate[c].w, now.up[c].w, sum);
      const bool exists = first + pack * 8 + 64 * c < p.columns, inside = lives(i) && exists;
      store(p.c + at + 64 * c, now.gate[c], inside);
      store(p.c + at + p.columns + 64 * c, now.up[c], inside);
      store(p.y + r * p.columns + first + pack * 8 + 64 * c, d, inside);
      sums[c] = exists ? sum : 0;  // beyond the columns is an infinite dy times 0
    }
#pragma unroll
    for (int c = 0; c < kColumns / 64; ++c) sums[c] = sum_of_packs(sums[c]);
    const int all = ceil_div(p.columns, kPartialColumns);
#pragma unroll
    for (int c = 0; c < kColumns / 64; ++c) {
      if (pack == c && lives(i) && first + 64 * c < p.columns) p.partial[r * all + first / 64 + c] = sums[c];
    }
  }
}

template <class Form>
__device__ inline void finish(const RowsArguments& p, RowsMemory<Form>& memory) {
  unsigned round[2] = {0, 0};
  for (Tiles<Form> tiles(p, memory); tiles.found; tiles.next()) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (tiles.walk.live <= half * kHalf) continue;
      if constexpr (Form::kEpilogue == Epilogue::kSwigluBackward) {
        finish_swiglu_backward(p, memory, half, round[half], tiles.walk.first_row, tiles.walk.live, tiles.first);
      } else {
        barrier_wait(shared_address(&memory.product_full[half]), round[half]);
        finish_half(p, memory, half, tiles.walk.first_row, tiles.walk.live, tiles.first, tiles.second);
      }
      round[half] ^= 1;
      __syncwarp();
      if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&memory.product_empty[half]));
    }
  }
}

}  // namespace megalith::cuda::hopper
