#include "core/base/rng.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace megalith::test {
namespace {

// The known-answer vectors that the authors publish with Random123 (kat_vectors, philox4x32 with 10 rounds).
TEST(Rng, PhiloxKnownAnswers) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}), (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32_10({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Rng, UniformCoversTheUnitInterval) {
  EXPECT_EQ(uniform(0, 0), 0);
  EXPECT_EQ(uniform(0xFFFFFFFF, 0xFFFFFFFF), 1 - 0x1p-53);
  EXPECT_EQ(uniform(0, 0x80000000), 0.5);
}

// FNV-1a's published test values.
TEST(Rng, HashOfNames) {
  EXPECT_EQ(hash_name(""), 0xcbf29ce484222325u);
  EXPECT_EQ(hash_name("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(hash_name("foobar"), 0x85944171f73967e8u);
}

std::vector<float> normals(std::size_t count, const NormalNumbers& numbers) {
  std::vector<float> out(count);
  fill_normal(out, numbers);
  return out;
}

TEST(Rng, AnySliceGivesTheSameNumbers) {
  const std::vector<float> whole = normals(103, {.seed = 7, .name_hash = hash_name("w")});
  for (std::size_t begin : {0, 1, 2, 3, 4, 5, 50, 102}) {
    for (std::size_t count : {0, 1, 2, 5, 40}) {
      if (begin + count > whole.size()) continue;
      const std::vector<float> slice =
          normals(count, {.seed = 7, .name_hash = hash_name("w"), .offset = static_cast<std::int64_t>(begin)});
      EXPECT_TRUE(std::equal(slice.begin(), slice.end(), whole.begin() + static_cast<std::ptrdiff_t>(begin)))
          << begin << " " << count;
    }
  }
  EXPECT_NE(whole, normals(103, {.seed = 8, .name_hash = hash_name("w")}));
  EXPECT_NE(whole, normals(103, {.seed = 7, .name_hash = hash_name("v")}));
}

// Compared with Box-Muller by the C library in fp64: at most one rounding of difference.
TEST(Rng, NormalsAreBoxMullerOfPhilox) {
  const std::uint64_t name = hash_name("layer");
  const std::vector<float> got = normals(40000, {.seed = 3, .name_hash = name});
  const PhiloxKey key =
      derive_key(3, {static_cast<std::uint32_t>(name), static_cast<std::uint32_t>(name >> 32), 0, kRngWeights});
  for (std::size_t i = 0; i < got.size(); ++i) {
    const PhiloxCounter words = philox4x32_10({static_cast<std::uint32_t>(i / 4), 0, 0, 0}, key);
    const std::size_t pair = i % 4 / 2 * 2;
    const double radius = std::sqrt(-2 * std::log((words[pair] + 0.5) / 4294967296.0));
    const double angle = 2 * M_PI * (words[pair + 1] / 4294967296.0);
    const double want = radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
    ASSERT_NEAR(static_cast<double>(got[i]), want, std::abs(want) * 0x1p-24 + 1e-14) << i;
  }
}

TEST(Rng, NormalsAreNormal) {
  constexpr std::size_t kCount = 1 << 20;
  std::vector<float> x = normals(kCount, {.seed = 11, .name_hash = 5, .mean = 2, .std = 3});
  double sum = 0, squares = 0, cubes = 0, fourths = 0, neighbours = 0, before = 0;
  for (float& value : x) {
    const double z = (static_cast<double>(value) - 2) / 3;
    sum += z, squares += z * z, cubes += z * z * z, fourths += z * z * z * z, neighbours += z * before;
    before = z;
    value = static_cast<float>(z);
  }
  // Five standard deviations of each estimate.
  const double root = std::sqrt(static_cast<double>(kCount));
  EXPECT_NEAR(sum / kCount, 0, 5 / root);
  EXPECT_NEAR(squares / kCount, 1, 5 * std::sqrt(2.0) / root);
  EXPECT_NEAR(cubes / kCount, 0, 5 * std::sqrt(15.0) / root);
  EXPECT_NEAR(fourths / kCount, 3, 5 * std::sqrt(96.0) / root);
  EXPECT_NEAR(neighbours / kCount, 0, 5 / root);
  // Kolmogorov-Smirnov; 1.95 / sqrt(n) is exceeded once in a thousand seeds, and this seed is fixed.
  std::sort(x.begin(), x.end());
  double distance = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    const double below = 0.5 * std::erfc(-static_cast<double>(x[i]) / M_SQRT2);
    distance = std::max(distance, std::abs(below - (static_cast<double>(i) + 0.5) / kCount));
  }
  EXPECT_LT(distance, 1.95 / root);
}

}  // namespace
}  // namespace megalith::test
