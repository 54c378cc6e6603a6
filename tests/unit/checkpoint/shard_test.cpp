#include "core/checkpoint/shard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>

#include "tests/unit/checkpoint/expect_error.h"

namespace megalith {
namespace {

// Offsets in the flattened tensor of the slice's elements, in the slice's own order: by the definition, one by one.
std::vector<std::int64_t> elements(const Shape& shape, const Slice& slice) {
  std::vector<std::int64_t> result;
  for (std::int64_t flat = 0; flat < shape.numel(); ++flat) {
    bool inside = true;
    if (slice.flat) {
      inside = flat >= slice.start[0] && flat < slice.stop[0];
    } else {
      std::int64_t rest = flat;
      for (int d = shape.rank() - 1; d >= 0; --d) {
        const std::int64_t at = rest % shape[d];
        rest /= shape[d];
        const auto i = static_cast<std::size_t>(d);
        inside = inside && at >= slice.start[i] && at < slice.stop[i];
      }
    }
    if (inside) result.push_back(flat);
  }
  return result;
}

Slice random_slice(const Shape& shape, std::mt19937& random) {
  const auto pick = [&](std::int64_t extent) {
    std::uniform_int_distribution<std::int64_t> at(0, extent);
    std::int64_t a = at(random), b = at(random);
    if (random() % 3 == 0) a = 0, b = extent;  // whole dims make long runs
    return std::pair(std::min(a, b), std::max(a, b));
  };
  if (random() % 3 == 0) {
    const auto [start, stop] = pick(shape.numel());
    return Slice::range(start, stop);
  }
  std::vector<std::int64_t> starts, stops;
  for (int d = 0; d < shape.rank(); ++d) {
    const auto [start, stop] = pick(shape[d]);
    starts.push_back(start);
    stops.push_back(stop);
  }
  return Slice::box(starts, stops);
}

TEST(Slice, CommonRunsMatchElementByElementSearch) {
  std::mt19937 random(7);
  std::int64_t compared = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    Shape shape;
    const int dims = static_cast<int>(random() % 5);
    for (int d = 0; d < dims; ++d) shape.push_back(static_cast<std::int64_t>(random() % 9 == 0 ? 0 : 1 + random() % 5));
    const Slice a = random_slice(shape, random), b = random_slice(shape, random);
    ASSERT_EQ(slice_problem(shape, a), "");
    const auto in_a = elements(shape, a), in_b = elements(shape, b);
    ASSERT_EQ(static_cast<std::int64_t>(in_a.size()), a.numel());
    std::vector<std::pair<std::int64_t, std::int64_t>> want, got;
    for (std::size_t i = 0; i < in_a.size(); ++i) {
      const auto found = std::lower_bound(in_b.begin(), in_b.end(), in_a[i]);
      if (found != in_b.end() && *found == in_a[i]) want.emplace_back(i, found - in_b.begin());
    }
    CommonRuns runs(shape, a, b);
    while (const auto run = runs.next()) {
      ASSERT_GT(run->count, 0);
      for (std::int64_t i = 0; i < run->count; ++i) got.emplace_back(run->a_offset + i, run->b_offset + i);
    }
    ASSERT_EQ(got, want) << to_string(a) << " and " << to_string(b);
    compared += static_cast<std::int64_t>(want.size());
  }
  EXPECT_GT(compared, 10'000);
}

TEST(Slice, WholeRowsMakeOneRun) {
  const Shape shape = {8, 4, 4};
  CommonRuns runs(shape, Slice::box({2, 0, 0}, {6, 4, 4}), Slice::whole(shape));
  const auto run = runs.next();
  ASSERT_TRUE(run.has_value());
  EXPECT_EQ(run->count, 64);
  EXPECT_EQ(run->b_offset, 32);
  EXPECT_FALSE(runs.next().has_value());
}

TEST(Slice, TextHasOneSpellingAndComesBack) {
  const std::vector<Slice> slices = {Slice::box({0, 2}, {4, 3}), Slice::range(5, 100), Slice::whole({}),
                                     Slice::whole({7})};
  for (const Slice& slice : slices) EXPECT_EQ(slice_from_string(to_string(slice)), slice) << to_string(slice);
  EXPECT_EQ(to_string(slices[0]), "[0:4,2:3]");
  EXPECT_EQ(to_string(slices[1]), "flat[5:100]");
  for (const char* bad : {"", "[", "]", "[0:4", "[0:4,]", "[,]", "[0]", "[0:4]]", "[00:4]", "[0:+4]", "[ 0:4]", "flat",
                          "[0:9223372036854775808]", "[0:1,0:1,0:1,0:1,0:1,0:1,0:1]", "flat[0:1", "flat [0:1]"}) {
    EXPECT_FALSE(slice_from_string(bad).has_value()) << bad;
  }
}

TEST(Slice, ProblemsAreFound) {
  const Shape shape = {4, 3};
  EXPECT_EQ(slice_problem(shape, Slice::box({0, 0}, {4, 3})), "");
  EXPECT_EQ(slice_problem(shape, Slice::range(12, 12)), "");
  EXPECT_NE(slice_problem(shape, Slice::box({0, 0}, {5, 3})), "");
  EXPECT_NE(slice_problem(shape, Slice::box({-1, 0}, {4, 3})), "");
  EXPECT_NE(slice_problem(shape, Slice::box({2, 0}, {1, 3})), "");
  EXPECT_NE(slice_problem(shape, Slice::box({0}, {4})), "");
  EXPECT_NE(slice_problem(shape, Slice::range(0, 13)), "");
  EXPECT_EQ(slice_problem(shape, Slice::box({0, 0}, {4})), "slice [0:4,0:] has not 2 dims");
  EXPECT_EQ(slice_problem(shape, Slice::box({0}, {4, 3})), "slice [0:4,:3] has not 2 dims");
  EXPECT_NE(slice_problem({4194305, 4194305, 211106198978564}, Slice::range(0, 4)), "");
}

TEST(Slice, CoverMustBeExact) {
  const Shape shape = {4, 6};
  const auto problem = [&](std::vector<Slice> slices) { return cover_problem(shape, slices); };
  EXPECT_EQ(problem({Slice::whole(shape)}), "");
  EXPECT_EQ(problem({Slice::box({0, 0}, {4, 2}), Slice::box({0, 2}, {4, 6})}), "");
  EXPECT_EQ(problem({Slice::range(10, 24), Slice::range(0, 10)}), "");
  EXPECT_EQ(problem({Slice::box({0, 0}, {2, 6}), Slice::range(12, 24)}), "");
  EXPECT_EQ(problem({Slice::whole(shape), Slice::range(3, 3)}), "");
  EXPECT_NE(problem({}), "");
  EXPECT_NE(problem({Slice::range(0, 23)}), "");
  EXPECT_NE(problem({Slice::whole(shape), Slice::range(3, 4)}), "");
  EXPECT_NE(problem({Slice::range(0, 12), Slice::range(11, 23)}), "");
  EXPECT_NE(problem({Slice::box({0, 0}, {2, 6}), Slice::box({1, 0}, {3, 6})}), "");
  EXPECT_NE(problem({Slice::box({0, 0}, {2, 6}), Slice::range(0, 12)}), "");
  EXPECT_EQ(cover_problem({0, 5}, std::vector<Slice>{Slice::whole({0, 5})}), "");
}

TEST(Slice, CoverTakesSoManyBoxesAndAnyRanges) {
  const auto problem = [](std::size_t parts, bool flat) {
    std::vector<Slice> slices;
    for (std::int64_t i = 0; std::cmp_less(i, parts); ++i)
      slices.push_back(flat ? Slice::range(i, i + 1) : Slice::box({i}, {i + 1}));
    return cover_problem({static_cast<std::int64_t>(parts)}, slices);
  };
  EXPECT_EQ(problem(kMaxBoxes, false), "");
  EXPECT_EQ(problem(kMaxBoxes + 1, false), "it is cut into more than 4096 boxes");
  EXPECT_EQ(problem(kMaxBoxes + 1, true), "");
}

TEST(AssignWriters, BalancesBytesAndDependsOnTheListAlone) {
  std::vector<Shard> shards;
  std::int64_t total = 0, largest = 0;
  for (std::int64_t i = 0; i < 50; ++i) {
    const Shape shape = {1 + (i * 37) % 11, 8};
    shards.push_back({.name = "param/" + std::to_string(i),
                      .dtype = i % 2 ? DType::kBf16 : DType::kFp32,
                      .shape = shape,
                      .slice = Slice::whole(shape)});
    const std::int64_t bytes = shape.numel() * (i % 2 ? 2 : 4);
    total += bytes;
    largest = std::max(largest, bytes);
  }
  const std::vector<int> writers = assign_writers(shards, 4);
  EXPECT_EQ(writers, assign_writers(shards, 4));
  ASSERT_EQ(writers.size(), shards.size());
  std::map<int, std::int64_t> load;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    load[writers[i]] += shards[i].slice.numel() * static_cast<std::int64_t>(size_of(shards[i].dtype));
  }
  ASSERT_EQ(load.size(), 4u);
  for (const auto& [rank, bytes] : load) {
    EXPECT_GE(rank, 0);
    EXPECT_LT(rank, 4);
    EXPECT_LE(bytes, total / 4 + largest);
  }
  EXPECT_EQ(assign_writers(shards, 1), std::vector<int>(50, 0));
}

TEST(ShardName, CarriesItsKind) {
  EXPECT_EQ(shard_name(kExpAvgKind, "layers.0.w"), "exp_avg/layers.0.w");
  EXPECT_EQ(kind_of("exp_avg/layers.0.w"), "exp_avg");
  EXPECT_EQ(kind_of("plain"), "");
}

}  // namespace
}  // namespace megalith
