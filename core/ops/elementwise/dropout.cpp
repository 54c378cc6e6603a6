#include "core/ops/elementwise/dropout.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/base/rng.h"
#include "core/ops/dispatch.h"
#include "core/ops/fields.h"
#include "core/ops/loops.h"

namespace megalith {

void fields(const Dropout& op, Fields& f) {
  f.in(op.parameters, "op.parameters");
  f.in(op.x, "op.x").floating().rank(2).strided_rows();
  f.out(op.y, "op.y").like(op.x).strided_rows().may_be(op.x);
  f.expect(op.p >= 0 && op.p < 1, "op.p", "0 <= p < 1", op.p);
  f.range(op.site, 0, 0xFFFFFF, "op.site");
  f.expect(op.rows_per_sample >= 1, "op.rows_per_sample", "at least 1", op.rows_per_sample);
  f.expect(op.first_row >= 0, "op.first_row", "not negative", op.first_row);
  check_part(op.part, op.rows_per_sample, "op.part");
  f.expect(op.first_column >= 0 && op.first_column % 32 == 0, "op.first_column",
           "a multiple of 32 that is not negative", op.first_column);
}

namespace {

// Philox 4x32-10 on eight counters that differ in their first word only. Even and odd lanes are separate, each word in
// the low half of 64 bits, as the multiplier requires. The high halves hold garbage until the end.
struct Half {
  __m256i word[4];
};

inline void philox_round(Half& half, __m256i key0, __m256i key1) {
  const __m256i product0 = _mm256_mul_epu32(half.word[0], _mm256_set1_epi64x(kPhiloxMultiplier0));
  const __m256i product1 = _mm256_mul_epu32(half.word[2], _mm256_set1_epi64x(kPhiloxMultiplier1));
  half.word[0] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(product1, 32), half.word[1]), key0);
  half.word[1] = product1;
  half.word[2] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(product0, 32), half.word[3]), key1);
  half.word[3] = product0;
}

using Keys = std::array<PhiloxKey, kPhiloxRounds>;

// words[w] holds word w of the eight outputs, lane j for the counter {first + j, counter[1], counter[2], counter[3]}.
inline void philox_eight(std::uint32_t first, const PhiloxCounter& counter, const Keys& keys, __m256i words[4]) {
  const __m256i lane =
      _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(first)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  Half even;
  Half odd;
  even.word[0] = lane;
  odd.word[0] = _mm256_srli_epi64(lane, 32);
  for (int w = 1; w < 4; ++w) {
    even.word[w] = odd.word[w] = _mm256_set1_epi32(static_cast<int>(counter[static_cast<std::size_t>(w)]));
  }
  for (const PhiloxKey& key : keys) {
    const __m256i key0 = _mm256_set1_epi32(static_cast<int>(key[0]));
    const __m256i key1 = _mm256_set1_epi32(static_cast<int>(key[1]));
    philox_round(even, key0, key1);
    philox_round(odd, key0, key1);
  }
  for (int w = 0; w < 4; ++w) words[w] = _mm256_blend_epi32(even.word[w], _mm256_slli_epi64(odd.word[w], 32), 0xAA);
}

}  // namespace

void compute(const Dropout& op) {
  const MicrobatchParameters parameters = *op.parameters;
  const auto iteration = static_cast<std::uint64_t>(parameters.iteration);
  const PhiloxKey key =
      derive_key(op.seed, {static_cast<std::uint32_t>(iteration), static_cast<std::uint32_t>(iteration >> 32),
                           static_cast<std::uint32_t>(op.layer), kRngDropout | static_cast<std::uint32_t>(op.site)});
  Keys keys;
  for (std::uint32_t round = 0; round < kPhiloxRounds; ++round) {
    keys[round] = {key[0] + round * kPhiloxWeyl0, key[1] + round * kPhiloxWeyl1};
  }
  // Unsigned comparison through the signed one: both sides have the top bit flipped.
  const auto threshold =
      static_cast<std::uint32_t>(std::min(std::floor(static_cast<double>(op.p) * 0x1p32), 0x1p32 - 1));
  const __m256i flip = _mm256_set1_epi32(static_cast<int>(0x80000000u));
  const __m256i limit = _mm256_set1_epi32(static_cast<int>(threshold ^ 0x80000000u));
  const float scale = 1.0f / (1.0f - op.p);

  visit_float(op.x.dtype, [&]<class T>(T) {
    const Rows<const T> xs(op.x);
    const Rows<T> ys(op.y);
    for_each_row(op.x, [&](std::int64_t row, const RowIndex& at) {
      const std::int64_t whole_row = op.first_row + row;
      const auto sample = static_cast<std::uint64_t>(parameters.first_sample + whole_row / op.rows_per_sample);
      const std::int64_t position = op.part.position(whole_row % op.rows_per_sample, op.rows_per_sample);
      const PhiloxCounter counter = {0, static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(sample),
                                     static_cast<std::uint32_t>(sample >> 32)};
      __m256i words[4];
      for_each_element(op.x.size(1), [&, x = xs[at], y = ys[at]](auto i) {
        const std::int64_t word = i.at / 8 % 4;
        if (word == 0) philox_eight(static_cast<std::uint32_t>((op.first_column + i.at) / 4), counter, keys, words);
        const __m256i dropped = _mm256_cmpgt_epi32(limit, _mm256_xor_si256(words[word], flip));
        y.set(i, _mm256_andnot_ps(_mm256_castsi256_ps(dropped), x[i] * scale));
      });
    });
  });
}

}  // namespace megalith
