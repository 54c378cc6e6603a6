// Sixteen floats as two vectors, for row-wise kernels that must keep up with memory in bf16 too. Sixteen bf16 in memory
// become a vector of the even and one of the odd elements, which takes one instruction each; where that order shows
// (fp32 data next to bf16 data), `unshuffle` restores it. For *_cpu.cpp files.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/ops/simd_math.h"

namespace megalith::simd {

struct Wide {
  F32x8 a, b;
};

inline Wide splat(float x) { return {set1(x), set1(x)}; }
inline Wide add(Wide x, Wide y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline Wide subtract(Wide x, Wide y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline Wide multiply(Wide x, Wide y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
// x y + z
inline Wide multiply_add(Wide x, Wide y, Wide z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
// z - x y
inline Wide subtract_product(Wide z, Wide x, Wide y) {
  return {_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)};
}

inline Wide from_bf16_words(__m256i words) {
  const __m256i odd = _mm256_and_si256(words, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(words, 16)), _mm256_castsi256_ps(odd)};
}

// The result in the upper half of each lane, rounded to nearest even; NaN becomes a NaN of all ones.
inline __m256i round_in_place(F32x8 x) {
  const __m256i u = _mm256_castps_si256(x);
  const __m256i lowest = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7FFF)), lowest);
  return _mm256_or_si256(rounded, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}
inline __m256i to_bf16_words(Wide x) {
  return _mm256_blend_epi16(_mm256_srli_epi32(round_in_place(x.a), 16), round_in_place(x.b), 0xAA);
}

// Sixteen elements of a row.
struct FullGroup {
  Wide load(const float* p) const { return {simd::load(p), simd::load(p + 8)}; }
  Wide load(const bf16* p) const { return from_bf16_words(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  void store(float* p, Wide x) const {
    simd::store(p, x.a);
    simd::store(p + 8, x.b);
  }
  void store(bf16* p, Wide x) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16_words(x)); }
  Wide keep(Wide x) const { return x; }
};

// The last one to fifteen, in natural order for every type; others read as 0 and are not touched.
struct LastGroup {
  std::int64_t first, second;  // elements of each vector

  explicit LastGroup(std::int64_t count)
      : first(std::min<std::int64_t>(count, 8)), second(std::max<std::int64_t>(count - 8, 0)) {}
  template <class T>
  Wide load(const T* p) const {
    return {load_partial(p, first), load_partial(p + 8, second)};
  }
  template <class T>
  void store(T* p, Wide x) const {
    store_partial(p, x.a, first);
    store_partial(p + 8, x.b, second);
  }
  Wide keep(Wide x) const {
    return {_mm256_and_ps(x.a, _mm256_castsi256_ps(lane_mask(first))),
            _mm256_and_ps(x.b, _mm256_castsi256_ps(lane_mask(second)))};
  }
};

// step(i, group) for each group of 0 .. n.
template <class Step>
inline void for_each_group(std::int64_t n, Step&& step) {
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) step(i, FullGroup{});
  if (i < n) step(i, LastGroup(n - i));
}

// Full groups of `row`, which were written next to bf16 data (evens, then odds), in natural order.
inline void unshuffle(float* row, std::int64_t n) {
  for (std::int64_t i = 0; i + 16 <= n; i += 16) {
    const F32x8 even = load(row + i), odd = load(row + i + 8);
    const F32x8 low = _mm256_unpacklo_ps(even, odd), high = _mm256_unpackhi_ps(even, odd);
    store(row + i, _mm256_permute2f128_ps(low, high, 0x20));
    store(row + i + 8, _mm256_permute2f128_ps(low, high, 0x31));
  }
}

}  // namespace megalith::simd
