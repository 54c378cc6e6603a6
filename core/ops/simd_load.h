// Eight floats at a time from and to fp32 or bf16 memory, whatever the alignment. For *_cpu.cpp files.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "core/tensor/bf16.h"

namespace megalith::simd {

inline constexpr std::int64_t kLanes = 8;

inline __m256 load8(const float* p) { return _mm256_loadu_ps(p); }

inline __m256 load8(const bf16* p) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

inline void store8(float* p, __m256 v) { _mm256_storeu_ps(p, v); }

// Rounds as to_bf16() does: to nearest even, NaN stays NaN.
inline __m128i round_to_bf16(__m256 v) {
  const __m256i u = _mm256_castps_si256(v);
  const __m256i high = _mm256_srli_epi32(u, 16);
  const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF))), 16);
  const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const __m256i words = _mm256_blendv_epi8(rounded, quiet, is_nan);
  return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

inline void store8(bf16* p, __m256 v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), round_to_bf16(v)); }

// The first n (0 to 8) elements; the other lanes are 0 and their memory is not touched.
template <class T>
inline __m256 load_n(const T* p, std::int64_t n) {
  if (n >= kLanes) return load8(p);
  T buffer[kLanes];
  for (std::int64_t i = 0; i < kLanes; ++i) buffer[i] = i < n ? p[i] : T{};
  return load8(buffer);
}

template <class T>
inline void store_n(T* p, __m256 v, std::int64_t n) {
  if (n >= kLanes) return store8(p, v);
  T buffer[kLanes];
  store8(buffer, v);
  for (std::int64_t i = 0; i < n; ++i) p[i] = buffer[i];
}

// The value a T would hold.
template <class T>
inline __m256 round_as(__m256 v) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return v;
  } else {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(round_to_bf16(v)), 16));
  }
}

inline float sum_lanes(__m256 v) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}

inline float max_lanes(__m256 v) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
}

// rows[i] lane j becomes rows[j] lane i.
inline void transpose8(__m256 (&rows)[8]) {
  __m256 pairs[8], quads[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    quads[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    quads[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xEE);
    quads[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    quads[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xEE);
  }
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x20);
    rows[i + 4] = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x31);
  }
}

}  // namespace megalith::simd
