// Eight floats at a time (AVX2 + FMA): loads and stores of fp32 and bf16 rows, reductions, and math functions. They use
// IEEE arithmetic alone, never the C library, so that results are equal on every x86-64-v3 machine. An element's result
// does not depend on its neighbors, so that partial vectors equal full ones. tests/unit/ops/simd_math_test.cpp measures
// the stated errors against libm's fp64, in units in the last place of fp32. Polynomials are minimax fits over the
// reduced range.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <limits>

#include "core/tensor/bf16.h"

namespace megalith::simd {

using F32x8 = __m256;
inline constexpr std::int64_t kLanes = 8;

inline F32x8 set1(float x) { return _mm256_set1_ps(x); }
inline F32x8 zero() { return _mm256_setzero_ps(); }

// All bits set in the first `count` lanes; count is clamped to 0 .. 8.
inline __m256i lane_mask(std::int64_t count) {
  const int n = count < 0 ? 0 : count > 8 ? 8 : static_cast<int>(count);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

// Rounds to nearest even; any NaN becomes a NaN of all ones.
inline __m128i to_bf16_bits(F32x8 x) {
  const __m256i u = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  const __m256i wide = _mm256_or_si256(rounded, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
  const __m256i upper_halves = _mm256_setr_epi8(2, 3, 6, 7, 10, 11, 14, 15, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                                2, 3, 6, 7, 10, 11, 14, 15, -1, -1, -1, -1, -1, -1, -1, -1);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(wide, upper_halves), 0b1000);
  return _mm256_castsi256_si128(packed);
}

inline F32x8 load(const float* p) { return _mm256_loadu_ps(p); }
// bf16 is the upper half of fp32, where one shuffle puts all eight.
inline F32x8 load(const bf16* p) {
  const __m256i twice = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(
      _mm256_shuffle_epi8(twice, _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7,  //
                                                  -1, -1, 8, 9, -1, -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15)));
}
inline void store(float* p, F32x8 x) { _mm256_storeu_ps(p, x); }
inline void store(bf16* p, F32x8 x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_bf16_bits(x)); }

// The first `count` elements (0 .. 8); the others read as zero, and their memory is not touched.
inline F32x8 load_partial(const float* p, std::int64_t count) { return _mm256_maskload_ps(p, lane_mask(count)); }
inline F32x8 load_partial(const bf16* p, std::int64_t count) {
  alignas(16) bf16 padded[8] = {};
  for (std::int64_t i = 0; i < count; ++i) padded[i] = p[i];
  return load(padded);
}
inline void store_partial(float* p, F32x8 x, std::int64_t count) { _mm256_maskstore_ps(p, lane_mask(count), x); }
inline void store_partial(bf16* p, F32x8 x, std::int64_t count) {
  alignas(16) bf16 padded[8];
  store(padded, x);
  for (std::int64_t i = 0; i < count; ++i) p[i] = padded[i];
}

// Returns x in the first `count` lanes, y in the others.
inline F32x8 select_first(std::int64_t count, F32x8 x, F32x8 y) {
  return _mm256_blendv_ps(y, x, _mm256_castsi256_ps(lane_mask(count)));
}

// Returns the sum of the lanes in the fixed order ((0+4)+(2+6)) + ((1+5)+(3+7)).
inline float horizontal_sum(F32x8 x) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float horizontal_max(F32x8 x) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// Horner's rule, highest coefficient first.
template <class... Floats>
F32x8 polynomial(F32x8 x, float highest, Floats... others) {
  F32x8 p = set1(highest);
  ((p = _mm256_fmadd_ps(p, x, set1(others))), ...);
  return p;
}

inline F32x8 abs(F32x8 x) { return _mm256_andnot_ps(set1(-0.0f), x); }

namespace detail {

// exp(x) for -87.34 < x < 88.73 and NaN; undefined elsewhere.
inline F32x8 exp_in_range(F32x8 x) {
  // Adding 1.5 * 2^23 rounds to an integer.
  const F32x8 magic = set1(12582912.0f);
  const F32x8 n = _mm256_sub_ps(_mm256_fmadd_ps(x, set1(1.44269504f), magic), magic);
  // ln 2 in two parts; the first has few bits, so that its product is exact.
  F32x8 r = _mm256_fnmadd_ps(n, set1(0.693359375f), x);
  r = _mm256_fnmadd_ps(n, set1(-2.12194440e-4f), r);
  const F32x8 p =
      polynomial(r, 0x1.6a234ep-10f, 0x1.123a6cp-7f, 0x1.5558f4p-5f, 0x1.55549p-3f, 0x1.fffffcp-2f, 1.0f, 1.0f);
  // Multiplies by 2^n in the exponent's bits. For NaN the conversion gives 2^31, which shifts to 0: p stays NaN.
  const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
}

}  // namespace detail

// exp for x <= 0 and -inf (softmax after subtraction of the maximum), with less work.
inline F32x8 exp_nonpositive(F32x8 x) {
  return _mm256_andnot_ps(_mm256_cmp_ps(x, set1(-87.3365402f), _CMP_LT_OQ), detail::exp_in_range(x));
}

// Error below 1 ulp; results below 2^-126 are 0, above the largest float infinity; NaN stays NaN.
inline F32x8 exp(F32x8 x) {
  const F32x8 overflows = _mm256_cmp_ps(x, set1(88.7228317f), _CMP_GT_OQ);
  return _mm256_blendv_ps(exp_nonpositive(x), set1(std::numeric_limits<float>::infinity()), overflows);
}

// s = 1 / (1 + exp(-x)), error below 3 ulp; results below 2^-126 are 0; NaN stays NaN. Uses exp(-|x|), which cannot
// overflow: the quotient is 1 / (1 + e) or e / (1 + e). A blend uses the sign bit only.
inline F32x8 logistic(F32x8 x) {
  const F32x8 one = set1(1.0f);
  const F32x8 e = exp_nonpositive(_mm256_or_ps(x, set1(-0.0f)));
  return _mm256_div_ps(_mm256_blendv_ps(one, e, x), _mm256_add_ps(one, e));
}

// s, and 1 - s without cancellation.
struct Logistic {
  F32x8 value;
  F32x8 complement;
};
inline Logistic logistic_pair(F32x8 x) {
  const F32x8 one = set1(1.0f);
  const F32x8 e = exp_nonpositive(_mm256_or_ps(x, set1(-0.0f)));
  const F32x8 larger = _mm256_div_ps(one, _mm256_add_ps(one, e));
  const F32x8 smaller = _mm256_mul_ps(e, larger);
  return {_mm256_blendv_ps(larger, smaller, x), _mm256_blendv_ps(smaller, larger, x)};
}

// Error below 2 ulp; NaN stays NaN.
inline F32x8 tanh(F32x8 x) {
  const F32x8 magnitude = abs(x);
  // From 0.625 on: 1 - 2 / (exp(2|x|) + 1); infinity gives 1.
  const F32x8 one = set1(1.0f);
  const F32x8 e = exp(_mm256_add_ps(magnitude, magnitude));
  const F32x8 large = _mm256_sub_ps(one, _mm256_div_ps(set1(2.0f), _mm256_add_ps(e, one)));
  // Below, to avoid cancellation: x + x^3 P(x^2).
  const F32x8 z = _mm256_mul_ps(x, x);
  const F32x8 p =
      polynomial(z, 0x1.18e1c4p-9f, -0x1.0bf4f6p-7f, 0x1.638b56p-6f, -0x1.b9ee9p-5f, 0x1.111066p-3f, -0x1.555554p-2f);
  const F32x8 small = _mm256_fmadd_ps(_mm256_mul_ps(p, z), magnitude, magnitude);
  const F32x8 is_small = _mm256_cmp_ps(magnitude, set1(0.625f), _CMP_LT_OQ);
  return _mm256_or_ps(_mm256_blendv_ps(large, small, is_small), _mm256_and_ps(x, set1(-0.0f)));
}

// Natural logarithm; error below 1 ulp for normal x > 0. log(0) = -inf, log(inf) = inf; negative and NaN give NaN;
// denormals count as 0.
inline F32x8 log(F32x8 x) {
  // x = 2^e (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)).
  const __m256i offset = _mm256_sub_epi32(_mm256_castps_si256(x), _mm256_set1_epi32(0x3F3504F3));
  const F32x8 e = _mm256_cvtepi32_ps(_mm256_srai_epi32(offset, 23));
  const __m256i mantissa =
      _mm256_add_epi32(_mm256_and_si256(offset, _mm256_set1_epi32(0x7FFFFF)), _mm256_set1_epi32(0x3F3504F3));
  const F32x8 f = _mm256_sub_ps(_mm256_castsi256_ps(mantissa), set1(1.0f));
  const F32x8 z = _mm256_mul_ps(f, f);
  const F32x8 p = polynomial(f, 0x1.14573ep-4f, -0x1.de3bf8p-4f, 0x1.e6f08cp-4f, -0x1.fc220ep-4f, 0x1.233766p-3f,
                             -0x1.555c4ep-3f, 0x1.99a4b6p-3f, -0x1.000006p-2f, 0x1.555548p-2f);
  // e ln 2 + f - f^2 / 2 + f^3 P(f), small terms first.
  F32x8 tail = _mm256_fmadd_ps(_mm256_mul_ps(p, z), f, _mm256_mul_ps(e, set1(-2.12194440e-4f)));
  tail = _mm256_fnmadd_ps(z, set1(0.5f), tail);
  F32x8 result = _mm256_fmadd_ps(e, set1(0.693359375f), _mm256_add_ps(f, tail));
  const float infinity = std::numeric_limits<float>::infinity();
  result = _mm256_blendv_ps(result, x, _mm256_cmp_ps(x, set1(infinity), _CMP_EQ_OQ));
  const F32x8 is_zero = _mm256_cmp_ps(abs(x), set1(std::numeric_limits<float>::min()), _CMP_LT_OQ);
  const F32x8 is_invalid = _mm256_cmp_ps(x, zero(), _CMP_NGE_UQ);
  result = _mm256_blendv_ps(result, set1(std::numeric_limits<float>::quiet_NaN()), is_invalid);
  return _mm256_blendv_ps(result, set1(-infinity), is_zero);
}
inline float log(float x) { return _mm256_cvtss_f32(log(set1(x))); }

// The standard normal distribution at x: `gauss` is exp(-x^2 / 2), `below` is Phi(x), the probability of less than x.
// The lower tail keeps its relative accuracy: exp(-x^2 / 2) s Q(s) with s = 1 / (1 + 0.25 |x|). The error of `below` is
// less than 4 + x^2 / 2 ulp.
struct Normal {
  F32x8 gauss;
  F32x8 below;
};
inline Normal normal_distribution(F32x8 x) {
  const F32x8 one = set1(1.0f);
  const F32x8 gauss = exp_nonpositive(_mm256_mul_ps(_mm256_mul_ps(x, set1(-0.5f)), x));
  const F32x8 s = _mm256_div_ps(one, _mm256_fmadd_ps(abs(x), set1(0.25f), one));
  const F32x8 q = polynomial(s, 0x1.11c036p-6f, -0x1.0424b6p-4f, 0x1.b56eccp-5f, 0x1.aa6d78p-6f, 0x1.e4ba4ep-7f,
                             0x1.5e2d06p-4f, 0x1.28a308p-4f, 0x1.86d7cep-4f, 0x1.979230p-4f, 0x1.989090p-4f);
  const F32x8 tail = _mm256_mul_ps(gauss, _mm256_mul_ps(s, q));
  return {gauss, _mm256_blendv_ps(_mm256_sub_ps(one, tail), tail, x)};
}

}  // namespace megalith::simd
