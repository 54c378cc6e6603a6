#include "core/checkpoint/shard.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>

#include "tests/unit/checkpoint/expect_error.h"

namespace megalith {
namespace {

// Offsets in the flattened tensor of the slice's elements, in the slice's order, from the definition.
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
    if (random() % 3 == 0) a = 0, b = extent;  // full dims make long runs
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
    for (const CommonRun& run : common_runs(shape, a, b)) {
      ASSERT_GT(run.count, 0);
      for (std::int64_t i = 0; i < run.count; ++i) got.emplace_back(run.a_offset + i, run.b_offset + i);
    }
    ASSERT_EQ(got, want) << to_string(a) << " and " << to_string(b);
    compared += static_cast<std::int64_t>(want.size());
  }
  EXPECT_GT(compared, 10'000);
}

TEST(Slice, ARangeIsFewBoxes) {
  const auto texts = [](const Shape& shape, std::int64_t begin, std::int64_t end) {
    std::vector<std::string> shown;
    for (const Slice& box : boxes_of_range(shape, begin, end)) shown.push_back(to_string(box));
    return shown;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(texts({4, 6}, 4, 20), (Texts{"[0:1,4:6]", "[1:3,0:6]", "[3:4,0:2]"}));
  EXPECT_EQ(texts({4, 6}, 8, 11), (Texts{"[1:2,2:5]"}));
  EXPECT_EQ(texts({4, 6}, 0, 24), (Texts{"[0:4,0:6]"}));
  EXPECT_EQ(texts({7}, 2, 5), (Texts{"[2:5]"}));
  EXPECT_EQ(texts({4, 6}, 5, 5), Texts{});
}

TEST(Slice, WholeRowsMakeOneRun) {
  const Shape shape = {8, 4, 4};
  const std::vector<CommonRun> runs = common_runs(shape, Slice::box({2, 0, 0}, {6, 4, 4}), Slice::whole(shape));
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].count, 64);
  EXPECT_EQ(runs[0].b_offset, 32);
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

// Cuts `whole` at random; one run of the flattened tensor may become a range.
std::vector<Slice> random_partition(const Shape& shape, std::mt19937& random) {
  std::vector<Slice> parts = {Slice::whole(shape)};
  for (int cuts = static_cast<int>(random() % 8); cuts > 0; --cuts) {
    const std::size_t which = random() % parts.size();
    const std::size_t d = random() % parts[which].start.size();
    const std::int64_t extent = parts[which].stop[d] - parts[which].start[d];
    if (extent < 2) continue;
    Slice rest = parts[which];
    rest.start[d] += 1 + static_cast<std::int64_t>(random()) % (extent - 1);
    parts[which].stop[d] = rest.start[d];
    parts.push_back(std::move(rest));
  }
  for (Slice& part : parts) {
    const auto inside = elements(shape, part);
    if (random() % 2 == 0 && inside.back() - inside.front() + 1 == static_cast<std::int64_t>(inside.size()))
      part = Slice::range(inside.front(), inside.back() + 1);
  }
  return parts;
}

TEST(Slice, CoverMatchesElementByElementCount) {
  std::mt19937 random(11);
  int exact = 0, wrong = 0;
  for (int trial = 0; trial < 5000; ++trial) {
    Shape shape;
    for (int d = 0; d <= trial % 3; ++d) shape.push_back(1 + static_cast<std::int64_t>(random() % 6));
    std::vector<Slice> slices = random_partition(shape, random);
    if (random() % 2 == 0) {  // one of them moves, with its size
      Slice& moved = slices[random() % slices.size()];
      const std::size_t d = random() % moved.start.size();
      const std::int64_t extent = moved.flat ? shape.numel() : shape[static_cast<int>(d)];
      const std::int64_t size = moved.stop[d] - moved.start[d];
      moved.start[d] = static_cast<std::int64_t>(random()) % (extent - size + 1);
      moved.stop[d] = moved.start[d] + size;
    }
    std::vector<int> times(static_cast<std::size_t>(shape.numel()), 0);
    for (const Slice& slice : slices) {
      for (const std::int64_t at : elements(shape, slice)) ++times[static_cast<std::size_t>(at)];
    }
    const bool once = std::ranges::all_of(times, [](int n) { return n == 1; });
    ++(once ? exact : wrong);
    std::string shown;
    for (const Slice& slice : slices) shown += to_string(slice) + " ";
    ASSERT_EQ(cover_problem(shape, slices).empty(), once) << shown;
  }
  EXPECT_GT(exact, 1000);
  EXPECT_GT(wrong, 1000);
}

// Processing each of these by element would last years.
TEST(Slice, CoverTakesNoLongerForLargeTensors) {
  constexpr std::int64_t kRows = std::int64_t{1} << 40;
  const Shape shape = {kRows, 4};
  const auto problem = [&](std::vector<Slice> slices) { return cover_problem(shape, slices); };
  EXPECT_EQ(problem({Slice::box({0, 0}, {kRows, 2}), Slice::range(2 * kRows, 4 * kRows)}),
            fmt::format("slices [0:{0},0:2] and flat[{1}:{2}] overlap", kRows, 2 * kRows, 4 * kRows));
  EXPECT_EQ(problem({Slice::box({0, 0}, {kRows - 1, 3}), Slice::box({0, 3}, {kRows - 1, 4}),
                     Slice::range(4 * kRows - 4, 4 * kRows)}),
            "");
  const std::vector<CommonRun> last =
      common_runs(shape, Slice::box({0, 0}, {kRows, 2}), Slice::range(4 * kRows - 4, 4 * kRows));
  ASSERT_EQ(last.size(), 1u);
  EXPECT_EQ(last[0].a_offset, 2 * kRows - 2);
  EXPECT_EQ(last[0].b_offset, 0);
  EXPECT_TRUE(common_runs(shape, Slice::box({0, 0}, {kRows, 2}), Slice::box({0, 2}, {kRows, 4})).empty());
}

TEST(Slice, CoverTakesManyPartsButNotAllInterleaved) {
  const auto problem = [](std::int64_t parts, auto slice) {
    std::vector<Slice> slices;
    for (std::int64_t i = 0; i < parts; ++i) slices.push_back(slice(i));
    return cover_problem({2, parts}, slices);
  };
  EXPECT_EQ(problem(50'000, [](std::int64_t i) { return Slice::box({0, i}, {2, i + 1}); }), "");
  EXPECT_EQ(problem(50'000, [](std::int64_t i) { return Slice::range(2 * i, 2 * i + 2); }), "");
  constexpr std::int64_t kHalf = 1100;  // rows above columns: in both dims many boxes span all others
  std::vector<Slice> slices;
  for (std::int64_t i = 0; i < kHalf; ++i) {
    slices.push_back(Slice::box({0, i}, {kHalf, i + 1}));
    slices.push_back(Slice::box({kHalf + i, 0}, {kHalf + i + 1, kHalf}));
  }
  EXPECT_EQ(cover_problem({2 * kHalf, kHalf}, slices), "its slices interleave too much to be compared");
}

TEST(Slice, AnExtentOfZeroComesBeforeAProductThatOverflows) {
  constexpr std::int64_t kLarge = std::int64_t{1} << 32;
  const Slice slice = Slice::box({0, 0, 0, 0}, {0, 1, kLarge, kLarge});
  EXPECT_EQ(slice.numel(), 0);
  EXPECT_EQ(cover_problem({0, 1, kLarge, kLarge}, std::vector{slice}), "");
}

TEST(Slice, AFewRangesNextToABoxAreComparedAndManyAreNot) {
  for (const std::int64_t rows : {100, 100'000}) {
    std::vector<Slice> slices = {Slice::box({0, 0}, {rows, 1})};
    for (std::int64_t i = 0; i < rows; ++i) slices.push_back(Slice::range(2 * i + 1, 2 * i + 2));
    EXPECT_EQ(cover_problem({rows, 2}, slices), rows == 100 ? "" : "its slices interleave too much to be compared");
  }
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
