// Packing and balance: properties over random lengths, and first-fit decreasing as written down plainly.
#include "core/data/packing.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "tests/support/matchers.h"
#include "tests/unit/data/data_files.h"

namespace megalith {
namespace {

using Lengths = std::vector<std::int32_t>;

// Lengths of conversations: most are short, a few have up to `longest` tokens.
Lengths draw_lengths(std::uint32_t seed, std::size_t count, double mean, std::int32_t longest) {
  std::mt19937 random(seed);
  std::lognormal_distribution<double> draw(std::log(mean), 0.9);
  Lengths lengths;
  for (std::size_t i = 0; i < count; ++i)
    lengths.push_back(std::clamp(static_cast<std::int32_t>(draw(random)), 1, longest));
  return lengths;
}

std::int64_t rows_of(const Packing& packing, std::int64_t pack, const Lengths& lengths, std::int64_t multiple) {
  std::int64_t rows = 0;
  for (const std::int32_t d : packing.pack(pack)) rows += padded_rows(lengths[static_cast<std::size_t>(d)], multiple);
  return rows;
}

// Quadratic first-fit decreasing.
std::vector<Lengths> first_fit(const Lengths& lengths, std::int64_t seq_length, std::int64_t multiple) {
  Lengths order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  const auto rows = [&](std::int32_t d) { return padded_rows(lengths[static_cast<std::size_t>(d)], multiple); };
  std::ranges::stable_sort(order, [&](std::int32_t a, std::int32_t b) { return rows(a) > rows(b); });
  std::vector<Lengths> packs;
  std::vector<std::int64_t> used;
  for (const std::int32_t d : order) {
    std::size_t p = 0;
    while (p < packs.size() && used[p] + rows(d) > seq_length) ++p;
    if (p == packs.size()) {
      packs.emplace_back();
      used.push_back(0);
    }
    packs[p].push_back(d);
    used[p] += rows(d);
  }
  return packs;
}

TEST(Packing, IsFirstFitDecreasing) {
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    const std::int64_t multiple = seed % 4 == 0 ? 1 : 1 << (seed % 4);
    const std::int64_t seq_length = 64 + 8 * (seed % 5);
    const Lengths lengths = draw_lengths(seed, 1 + 13 * seed, 20, static_cast<std::int32_t>(seq_length));
    const Packing packing = pack_documents(lengths, {.seq_length = seq_length, .pad_multiple = multiple});
    const std::vector<Lengths> expected = first_fit(lengths, seq_length, multiple);
    ASSERT_EQ(packing.num_packs(), static_cast<std::int64_t>(expected.size())) << seed;
    for (std::size_t p = 0; p < expected.size(); ++p) {
      const std::span<const std::int32_t> pack = packing.pack(static_cast<std::int64_t>(p));
      EXPECT_EQ(Lengths(pack.begin(), pack.end()), expected[p]) << seed << ", pack " << p;
    }
  }
}

TEST(Packing, PacksEachDocumentOnceWithinTheRows) {
  constexpr std::int64_t kRows = 4096, kMultiple = 8;
  const Lengths lengths = draw_lengths(7, 200'000, 500, kRows);
  const Packing packing = pack_documents(lengths, {.seq_length = kRows, .pad_multiple = kMultiple});
  Lengths seen = packing.documents;
  std::ranges::sort(seen);
  ASSERT_EQ(seen.size(), lengths.size());
  for (std::size_t i = 0; i < seen.size(); ++i) ASSERT_EQ(seen[i], static_cast<std::int32_t>(i));
  std::int64_t rows = 0, tokens = 0;
  for (std::int64_t p = 0; p < packing.num_packs(); ++p) {
    const std::int64_t used = rows_of(packing, p, lengths, kMultiple);
    ASSERT_LE(used, kRows);
    ASSERT_GT(used, 0);
    rows += used;
  }
  for (const std::int32_t length : lengths) tokens += length;
  // Many short documents fill the packs that long ones begin.
  EXPECT_LE(static_cast<double>(packing.num_packs()), 1.001 * static_cast<double>(rows) / kRows + 1.0);
  const PackingReport report = report_packing(packing, lengths, kRows);
  EXPECT_EQ(report.tokens, tokens);
  EXPECT_EQ(report.documents, 200'000);
  EXPECT_EQ(report.packs, packing.num_packs());
  EXPECT_GT(report.fill, 0.99);
  EXPECT_NEAR(report.mean_documents * static_cast<double>(report.packs), 200'000, 0.01);
  EXPECT_GE(static_cast<double>(report.max_documents), report.mean_documents);
  EXPECT_GT(report.imbalance, 1.0);
}

TEST(Packing, OneDocumentAPackIfNoneFitTogether) {
  const Packing packing = pack_documents(Lengths{6, 10, 7, 6}, {.seq_length = 10});
  EXPECT_EQ(packing.documents, (Lengths{1, 2, 0, 3}));
  EXPECT_EQ(packing.begin, (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
  const PackingReport report = report_packing(packing, Lengths{6, 10, 7, 6}, 10);
  EXPECT_DOUBLE_EQ(report.fill, 29.0 / 40.0);
  EXPECT_DOUBLE_EQ(report.imbalance, 100.0 / ((36 + 100 + 49 + 36) / 4.0));
  EXPECT_EQ(report.max_documents, 1);
}

TEST(Packing, NoDocuments) {
  const Packing packing = pack_documents({}, {.seq_length = 10});
  EXPECT_EQ(packing.num_packs(), 0);
  EXPECT_EQ(report_packing(packing, {}, 10).packs, 0);
}

TEST(Packing, LongDocuments) {
  const Lengths lengths = {3, 12, 8, 30, 2};
  const auto pack = [&](LongDocuments policy) {
    return pack_documents(lengths, {.seq_length = 8, .pad_multiple = 2, .long_documents = policy});
  };
  const Packing dropped = pack(LongDocuments::kDrop);
  EXPECT_EQ(dropped.documents, (Lengths{2, 0, 4}));
  EXPECT_EQ(dropped.begin, (std::vector<std::int64_t>{0, 1, 3}));
  EXPECT_EQ(dropped.num_long, 2);
  EXPECT_EQ(dropped.longest, 30);
  const Packing cut = pack(LongDocuments::kTruncate);
  EXPECT_EQ(cut.documents, (Lengths{1, 2, 3, 0, 4}));
  EXPECT_EQ(cut.num_long, 2);
  EXPECT_EQ(report_packing(cut, lengths, 8).tokens, 3 * 8 + 3 + 2);
  EXPECT_THAT(
      error_of(ExitCode::kUsage, [&] { pack(LongDocuments::kError); }),
      AllOf(HasSubstr("--seq-length: expected at least 30"), HasSubstr("got 8, which 2 of 5 conversations exceed;"),
            HasSubstr("--sft-long truncate or --sft-long drop")));
}

using Squares = std::vector<std::int64_t>;

// Largest over mean sum of the packs of a microbatch of one rank (`of_ranks`: of all packs of a rank).
double imbalance(const Squares& squares, std::span<const std::int64_t> order, const StepShape& shape, bool of_ranks) {
  std::vector<double> sums(static_cast<std::size_t>(of_ranks ? shape.ranks : shape.ranks * shape.microbatches));
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::size_t cell = i / static_cast<std::size_t>(shape.packs_per_microbatch);
    sums[of_ranks ? cell % static_cast<std::size_t>(shape.ranks) : cell] +=
        static_cast<double>(squares[static_cast<std::size_t>(order[i])]);
  }
  return std::ranges::max(sums) * static_cast<double>(sums.size()) / std::accumulate(sums.begin(), sums.end(), 0.0);
}

// Sum over microbatches of the slowest rank, over the same with even ranks: time of ranks that wait for each other.
double waits(const Squares& squares, std::span<const std::int64_t> order, const StepShape& shape) {
  double slowest = 0.0;
  const auto group = static_cast<std::size_t>(shape.ranks * shape.packs_per_microbatch);
  for (std::size_t first = 0; first < order.size(); first += group) {
    std::vector<double> sums(static_cast<std::size_t>(shape.ranks));
    for (std::size_t i = 0; i < group; ++i)
      sums[i / static_cast<std::size_t>(shape.packs_per_microbatch)] +=
          static_cast<double>(squares[static_cast<std::size_t>(order[first + i])]);
    slowest += std::ranges::max(sums);
  }
  return slowest * static_cast<double>(shape.ranks) /
         static_cast<double>(std::accumulate(squares.begin(), squares.end(), std::int64_t{0}));
}

TEST(Balance, IsAPermutationAndEvener) {
  constexpr std::int64_t kRows = 8192;
  const Lengths lengths = draw_lengths(3, 60'000, 700, kRows);
  const Packing packing = pack_documents(lengths, {.seq_length = kRows});
  std::mt19937 random(5);
  for (const StepShape& shape : {StepShape{.ranks = 4, .microbatches = 8, .packs_per_microbatch = 2},
                                 {.ranks = 8, .microbatches = 4, .packs_per_microbatch = 1},
                                 {.ranks = 3, .microbatches = 5, .packs_per_microbatch = 3},
                                 {.ranks = 64, .microbatches = 1, .packs_per_microbatch = 4},
                                 {.ranks = 1, .microbatches = 16, .packs_per_microbatch = 4}}) {
    Squares squares;
    const std::int64_t count = shape.ranks * shape.microbatches * shape.packs_per_microbatch;
    for (std::int64_t i = 0; i < count; ++i) {
      std::int64_t sum = 0;
      for (const std::int32_t d : packing.pack(static_cast<std::int64_t>(random()) % packing.num_packs())) {
        const std::int64_t length = lengths[static_cast<std::size_t>(d)];
        sum += length * length;
      }
      squares.push_back(sum);
    }
    const std::vector<std::int64_t> order = balance(squares, shape);
    std::vector<std::int64_t> sorted = order, in_order(order.size());
    std::ranges::sort(sorted);
    std::iota(in_order.begin(), in_order.end(), 0);
    ASSERT_EQ(sorted, in_order);
    EXPECT_EQ(order, balance(squares, shape));
    const auto place = ::testing::Message() << shape.ranks << " ranks, " << shape.packs_per_microbatch << " packs";
    for (const bool of_ranks : {false, true}) {
      EXPECT_LE(imbalance(squares, order, shape, of_ranks), imbalance(squares, in_order, shape, of_ranks)) << place;
    }
    EXPECT_LE(waits(squares, order, shape), waits(squares, in_order, shape)) << place;
    // Sums of ranks differ by at most the largest microbatch.
    const double largest = imbalance(squares, order, shape, false) / static_cast<double>(shape.microbatches);
    EXPECT_LE(imbalance(squares, order, shape, true), 1.0 + largest) << place;
  }
}

TEST(Balance, EqualPacksKeepTheirOrder) {
  const std::vector<std::int64_t> order = balance(Squares(6, 4), {.ranks = 3, .microbatches = 2});
  EXPECT_EQ(order, (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5}));
}

TEST(Balance, ConcurrentMicrobatchesAreClose) {
  // Two ranks, two microbatches of one pack: the long packs run together, and the ranks' sums are even.
  const std::vector<std::int64_t> order = balance(Squares{9, 1, 2, 10}, {.ranks = 2, .microbatches = 2});
  EXPECT_EQ(order, (std::vector<std::int64_t>{3, 0, 1, 2}));
}

// The same microbatches, each with the same number, on any number of ranks.
TEST(Balance, NumbersOfMicrobatchesDoNotDependOnTheRanks) {
  std::mt19937_64 random(3);
  Squares squares(24);
  for (std::int64_t& square : squares) square = static_cast<std::int64_t>(random() % 1000);
  for (const std::int64_t packs : {1, 2, 3}) {
    const auto microbatches = [&](std::int64_t ranks) {
      const std::vector<std::int64_t> order =
          balance(squares, {.ranks = ranks, .microbatches = 24 / packs / ranks, .packs_per_microbatch = packs});
      std::map<std::int64_t, std::vector<std::int64_t>> by_number;
      auto pack = order.begin();
      for (const std::int64_t number : number_microbatches(order, packs)) {
        by_number[number].assign(pack, pack + packs);
        pack += packs;
      }
      return by_number;
    };
    const auto want = microbatches(1);
    EXPECT_EQ(std::ssize(want), 24 / packs);
    EXPECT_EQ(want.rbegin()->first, 24 / packs - 1);
    EXPECT_EQ(microbatches(2), want);
    EXPECT_EQ(microbatches(4), want);
  }
}

TEST(Balance, HugeSquaresDoNotOverflow) {
  const Squares squares(64, std::int64_t{1} << 56);
  EXPECT_EQ(balance(squares, {.ranks = 4, .microbatches = 4, .packs_per_microbatch = 4}).size(), 64u);
}

}  // namespace
}  // namespace megalith
