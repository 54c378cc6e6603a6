#include "moe/ops/grouped_gemm/grouped_gemm.h"

#include <utility>

#include "tests/support/tier.h"
#include "tests/unit/ops/magnitude.h"
#include "tests/unit/ops/moe/routed_rows.h"

namespace megalith::test {
namespace {

struct GroupedSizes {
  std::int64_t k, n;
};

struct Kind {
  bool transposed, pair, gathered;
};
constexpr Kind kKinds[] = {{true, false, false},  {true, false, true},  {true, true, false},  {true, true, true},
                           {false, false, false}, {false, false, true}, {false, true, false}, {false, true, true}};

class GroupedGemmTest : public RoutedTest {
 protected:
  GroupedGemm op_for(const ExpertRanges& routing, const GroupedSizes& s, const Kind& kind) {
    const Shape matrix = kind.transposed ? Shape{routing.experts() * s.n, s.k} : Shape{routing.experts() * s.k, s.n};
    const std::int64_t width = kind.pair && !kind.transposed ? 2 * s.k : s.k;
    const Operand a = operand(routing, width, kind.gathered);
    return {.a = a.x,
            .index = a.index,
            .offsets = offsets_of(routing),
            .b = input(matrix),
            .b2 = kind.pair ? input(matrix) : Tensor{},
            .c = output({routing.capacity, kind.pair && kind.transposed ? 2 * s.n : s.n}),
            .transpose_b = kind.transposed};
  }
  // Result of `multiply(a, b)` for the full op: the pair's results next to each other, or added.
  template <class Multiply>
  Values of_pair(const GroupedGemm& op, const GroupedSizes& s, Multiply&& multiply) {
    const Operand a{op.a, op.index};
    Values one = multiply(rows_of(a, 0, s.k), values(op.b));
    if (!op.b2) return one;
    const Values other = multiply(rows_of(a, op.transpose_b ? 0 : s.k, s.k), values(op.b2));
    if (!op.transpose_b) {
      for (std::size_t i = 0; i < one.size(); ++i) one[i] += other[i];
      return one;
    }
    Values both;
    const auto n = static_cast<std::ptrdiff_t>(s.n);
    for (std::ptrdiff_t at = 0; at < static_cast<std::ptrdiff_t>(one.size()); at += n) {
      both.insert(both.end(), one.begin() + at, one.begin() + at + n);
      both.insert(both.end(), other.begin() + at, other.begin() + at + n);
    }
    return both;
  }
  void compare(const GroupedGemm& op, const ExpertRanges& routing, const GroupedSizes& s) {
    const auto n = static_cast<std::size_t>(s.n);
    const Values want = of_pair(op, s, [&](const reference::RoutedRows& a, const Values& b) {
      return reference::grouped_gemm(a, routing.offsets, b, n, op.transpose_b);
    });
    const Values magnitude = of_pair(op, s, [&](const reference::RoutedRows& a, const Values& b) {
      return reference::grouped_gemm(magnitudes(a), routing.offsets, magnitudes(b), n, op.transpose_b);
    });
    Idles idle = no_rows(routing, {op.a, op.index, op.offsets, op.b, op.b2});
    if (s.k == 0 && op.index) idle.emplace_back(op.index, "rows of no elements");
    run(op, idle);
    const std::int64_t length = op.b2 && !op.transpose_b ? 2 * s.k : s.k;
    expect_close(live(op.c, routing), want,
                 {.length = length, .magnitude = sum_magnitude(want, magnitude, op.c.dtype, length)});
    expect_rest_untouched(op.c, routing);
  }
  void compare(const ExpertRanges& routing, const GroupedSizes& s) {
    for (const Kind& kind : kKinds) {
      SCOPED_TRACE(name_of(routing) + ", k " + std::to_string(s.k) + ", n " + std::to_string(s.n) +
                   (kind.transposed ? ", transposed" : "") + (kind.pair ? ", a pair" : "") +
                   (kind.gathered ? ", gathered" : ""));
      compare(op_for(routing, s, kind), routing, s);
    }
  }
};
MEGALITH_OP_TESTS(GroupedGemmTest);

TEST_P(GroupedGemmTest, SmallSizes) {
  for (const ExpertRanges& routing : kSmallRoutings) compare(routing, {7, 9});
  compare({{0, 2, 4}, 5}, {1, 1});
}

TEST_P(GroupedGemmTest, WholePacks) {
  for (const ExpertRanges& routing : kSmallRoutings) compare(routing, {16, 24});
}

TEST_P(GroupedGemmTest, EmptyMatrices) {
  compare({{0, 2, 3}, 4}, {0, 3});
  compare({{0, 2, 3}, 4}, {3, 0});
}

// Some with full packs, others without, and more terms than the CPU sums at once.
TEST_P(GroupedGemmTest, SeveralTiles) {
  compare(kLargeRoutings[0], {67, 133});
  compare(kLargeRoutings[1], {72, 136});
  compare({{0, 5, 9}, 10}, {520, 24});
}

// CUDA has a fast form for depths that are multiples of 64.
TEST_P(GroupedGemmTest, WholeStages) {
  for (const ExpertRanges& routing : kSmallRoutings) compare(routing, {64, 8});
  compare(kLargeRoutings[0], {320, 40});
  compare(kLargeRoutings[1], {128, 264});
}

TEST_P(GroupedGemmTest, ManyExperts) {
  const ExpertRanges routing = many_experts();
  compare(op_for(routing, {64, 8}, {true, false, true}), routing, {64, 8});
}

TEST_P(GroupedGemmTest, StridedRowsLeaveTheirGapsAlone) {
  const ExpertRanges routing{{0, 3, 3, 70}, 72};
  for (const std::int64_t first : {3, 8}) {
    GroupedGemm op = op_for(routing, {24, 16}, {true, true, false});
    op.a = routed_input(routing, 40).slice(1, first, 24);
    const Tensor whole = output({routing.capacity, 56});
    op.c = whole.slice(1, first, 32);
    compare(op, routing, {24, 16});
    expect_untouched(whole.slice(1, 0, first));
    expect_untouched(whole.slice(1, first + 32, 24 - first));
  }
}

TEST_P(GroupedGemmTest, TakesTheLastOffsetAsBound) {
  const ExpertRanges routing{{0, 3, 6}, 9};
  GroupedGemm op = op_for(routing, {8, 8}, {true, false, false});
  op.a.bound = op.c.bound = op.offsets.as<const std::int32_t>() + 2;
  run(op);
  const Values want = values(Tensor(op.c.data, dtype(), {6, 8}));
  op.a.bound = op.c.bound = nullptr;
  run(op);
  EXPECT_EQ(values(live(op.c, routing)), want);
  op.c.bound = op.offsets.as<const std::int32_t>() + 1;
  expect_refused(op,
                 "op.c: expected no bound but that of the tensor it is like, or the end of op.offsets, got another");
}

TEST_P(GroupedGemmTest, WrongOffsetsReachNoMemoryOfOthers) {
  const ExpertRanges routing{{0, 20, 37}, 37};
  for (const std::int64_t k : {24, 64}) {
    for (const Kind& kind : kKinds) {
      GroupedGemm op = op_for(routing, {k, 16}, kind);
      op.offsets = input({3}, DType::kInt32, {-5, 20, 300});
      compare(op, routing, {k, 16});
    }
  }
}

TEST_P(GroupedGemmTest, RefusesMatricesThatAreNotOneForEachExpert) {
  GroupedGemm op = op_for({{0, 3, 6}, 9}, {8, 8}, {true, false, false});
  op.b = input({15, 8});
  expect_refused(op, "op.b: expected equal row counts for each expert of op.offsets, got [15, 8]");
  op.offsets = input({1}, DType::kInt32, {0});
  expect_refused(op, "op.offsets: expected experts + 1 numbers, at least 2, got [1]");
}

TEST_P(GroupedGemmTest, ReplaysWithAnotherRouting) {
  const GroupedGemm op = op_for(all_rows(), {64, 16}, {true, true, true});
  expect_replay_follows_offsets(op, {op.c});
}

// A result depends neither on neighboring rows and columns nor on its place in a tile.
TEST_P(GroupedGemmTest, ResultsDoNotDependOnTheirNeighbours) {
  const ExpertRanges together{{0, 100}, 102}, separate{{0, 37}, 38};
  for (const std::int64_t k : {40, 64}) {
    const Values rows = normal(100 * k), some(rows.begin() + 61 * k, rows.begin() + 98 * k);
    const Tensor a = input({102, k}, dtype(), padded(rows, together, k)), c = output({102, 320});
    const Tensor a_part = input({38, k}, dtype(), padded(some, separate, k)), part = output({38, 112});
    const Tensor b = input({320, k});
    run(GroupedGemm{.a = a, .offsets = offsets_of(together), .b = b, .c = c});
    const Values want = values(c.slice(0, 61, 37).slice(1, 136, 112));
    run(GroupedGemm{.a = a_part, .offsets = offsets_of(separate), .b = b.slice(0, 136, 112), .c = part});
    EXPECT_EQ(values(live(part, separate)), want);
  }
}

TEST_P(GroupedGemmTest, AnIndexGivesTheBitsOfRowsInMemory) {
  const ExpertRanges& routing = kLargeRoutings[1];
  for (const std::int64_t k : {40, 64}) {
    for (const bool transposed : {false, true}) {
      GroupedGemm op = op_for(routing, {k, 136}, {transposed, true, true});
      launch(stream(), ready(op));
      const Values want = values(live(op.c, routing));
      op.a = rows_in_memory(op.a, op.index, op.offsets);
      op.index = {};
      launch(stream(), ready(op));
      EXPECT_EQ(values(live(op.c, routing)), want);
    }
  }
}

// Operand that is read through an index.
enum class Gathered { kNone, kA, kB };

class GroupedGemmWgradTest : public RoutedTest {
 protected:
  void compare(const ExpertRanges& routing, std::int64_t m, std::int64_t n, bool pair, Gathered gathered, DType type,
               bool accumulate = true) {
    SCOPED_TRACE(name_of(routing) + ", m " + std::to_string(m) + ", n " + std::to_string(n) + (pair ? ", a pair" : "") +
                 (accumulate ? "" : ", overwritten") +
                 (gathered == Gathered::kA   ? ", gathered a"
                  : gathered == Gathered::kB ? ", gathered b"
                                             : ""));
    const std::int64_t matrices = routing.experts() * m;
    const Operand a = operand(routing, pair ? 2 * m : m, gathered == Gathered::kA);
    const Operand b = operand(routing, n, gathered == Gathered::kB);
    const auto result = [&] {
      return accumulate ? inout({matrices, n}, type, normal(matrices * n)) : output({matrices, n}, type);
    };
    const GroupedGemmWgrad op{.a = a.x,
                              .a_index = a.index,
                              .b = b.x,
                              .b_index = b.index,
                              .offsets = offsets_of(routing),
                              .c = result(),
                              .c2 = pair ? result() : Tensor{},
                              .accumulate = accumulate};
    const std::vector<Tensor> results = pair ? std::vector<Tensor>{op.c, op.c2} : std::vector<Tensor>{op.c};
    std::vector<Values> before;
    for (const Tensor& c : results)
      before.push_back(accumulate ? values(c) : Values(static_cast<std::size_t>(matrices * n)));
    Idles idle = no_rows(routing, {op.a, op.a_index, op.b, op.b_index, op.offsets});
    if (accumulate) idle = no_rows(routing, {op.a, op.a_index, op.b, op.b_index, op.offsets, op.c, op.c2});
    run(op, idle);
    for (std::size_t i = 0; i < results.size(); ++i) {
      const reference::RoutedRows left = rows_of(a, static_cast<std::int64_t>(i) * m, m), right = rows_of(b, 0, n);
      Values want = reference::grouped_gemm_wgrad(left, right, routing.offsets);
      Values magnitude = reference::grouped_gemm_wgrad(magnitudes(left), magnitudes(right), routing.offsets);
      for (std::size_t j = 0; j < want.size(); ++j) {
        want[j] += before[i][j];
        magnitude[j] += std::abs(before[i][j]);
      }
      const std::int64_t length = routing.live() + 2;
      expect_close(results[i], want, {.length = length, .magnitude = sum_magnitude(want, magnitude, type, length)});
      for (std::int64_t e = 0; e < routing.experts(); ++e) {
        const auto at = static_cast<std::size_t>(e);
        if (routing.offsets[at] == routing.offsets[at + 1] && accumulate)
          expect_untouched(results[i].slice(0, e * m, m));
      }
    }
  }
  void compare(const ExpertRanges& routing, std::int64_t m, std::int64_t n) {
    for (const bool pair : {false, true}) {
      for (const Gathered gathered : {Gathered::kNone, Gathered::kA, Gathered::kB}) {
        compare(routing, m, n, pair, gathered, DType::kFp32);
        compare(routing, m, n, pair, gathered, DType::kFp32, false);
        if (dtype() == DType::kBf16 && gathered != Gathered::kA) {
          compare(routing, m, n, pair, gathered, dtype());
          compare(routing, m, n, pair, gathered, dtype(), false);
        }
      }
    }
  }
};
MEGALITH_OP_TESTS(GroupedGemmWgradTest);

TEST_P(GroupedGemmWgradTest, SmallSizes) {
  for (const ExpertRanges& routing : kSmallRoutings) compare(routing, 7, 9);
  compare({{0, 2, 4}, 5}, 1, 1);
  compare({{0, 2, 4}, 5}, 0, 3);
  compare({{0, 2, 4}, 5}, 3, 0);
}

TEST_P(GroupedGemmWgradTest, WholePacks) {
  for (const ExpertRanges& routing : kSmallRoutings) compare(routing, 16, 24);
}

TEST_P(GroupedGemmWgradTest, SeveralTiles) {
  compare(kLargeRoutings[0], 72, 136);
  compare(kLargeRoutings[1], 67, 133);
  if (device() == DeviceType::kCpu && one_of(2) > 1) return;  // it has no tiles
  compare({{0, 300, 307}, 310}, 24, 16);
  compare(kLargeRoutings[0], 136, 264);
}

TEST_P(GroupedGemmWgradTest, ManyExperts) { compare(many_experts(), 8, 16); }

TEST_P(GroupedGemmWgradTest, AnIndexGivesTheBitsOfRowsInMemory) {
  const ExpertRanges& routing = kLargeRoutings[1];
  const Tensor offsets = offsets_of(routing);
  for (const bool of_a : {false, true}) {
    const Operand a = operand(routing, 72, of_a), b = operand(routing, 136, !of_a);
    const Values before = normal(8 * 72 * 136);
    GroupedGemmWgrad op{.a = a.x, .a_index = a.index, .b = b.x, .b_index = b.index, .offsets = offsets};
    std::vector<Values> results;
    for (const bool in_memory : {false, true}) {
      if (in_memory && of_a) op.a = rows_in_memory(a.x, std::exchange(op.a_index, {}), offsets);
      if (in_memory && !of_a) op.b = rows_in_memory(b.x, std::exchange(op.b_index, {}), offsets);
      op.c = inout({8 * 72, 136}, DType::kFp32, before);
      launch(stream(), ready(op));
      results.push_back(values(op.c));
    }
    EXPECT_EQ(results[0], results[1]);
  }
}

TEST_P(GroupedGemmWgradTest, WrongOffsetsReachNoMemoryOfOthers) {
  const ExpertRanges routing{{0, 20, 37}, 37};
  for (const Gathered gathered : {Gathered::kNone, Gathered::kA, Gathered::kB}) {
    const Operand a = operand(routing, 16, gathered == Gathered::kA),
                  b = operand(routing, 24, gathered == Gathered::kB);
    const Values before = normal(2 * 16 * 24);
    std::vector<Values> results;
    for (const Tensor& offsets : {offsets_of(routing), input({3}, DType::kInt32, {-5, 20, 300})}) {
      const Tensor c = inout({2 * 16, 24}, DType::kFp32, before);
      const GroupedGemmWgrad op{.a = a.x, .a_index = a.index, .b = b.x, .b_index = b.index, .offsets = offsets, .c = c};
      launch(stream(), ready(op));
      results.push_back(values(c));
    }
    EXPECT_EQ(results[0], results[1]);
  }
}

TEST_P(GroupedGemmWgradTest, StridedRows) {
  const ExpertRanges routing{{0, 3, 3, 70}, 72};
  const Tensor a = routed_input(routing, 40), b = routed_input(routing, 30), offsets = offsets_of(routing);
  const Values before = normal(3 * 16 * 24);
  const Tensor c = inout({48, 24}, DType::kFp32, before);
  for (const std::int64_t first : {0, 5}) {
    run(GroupedGemmWgrad{.a = a.slice(1, 8, 16), .b = b.slice(1, first, 24), .offsets = offsets, .c = c});
    const reference::RoutedRows left = rows_of({a, {}}, 8, 16), right = rows_of({b, {}}, first, 24);
    Values want = reference::grouped_gemm_wgrad(left, right, routing.offsets);
    Values magnitude = reference::grouped_gemm_wgrad(magnitudes(left), magnitudes(right), routing.offsets);
    for (std::size_t i = 0; i < want.size(); ++i) {
      const double start = static_cast<float>(before[i]);
      want[i] += start;
      magnitude[i] += std::abs(start);
    }
    expect_close(c, want, {.length = 72, .magnitude = sum_magnitude(want, magnitude, DType::kFp32, 72)});
  }
}

// The capacity selects a kernel's form.
TEST_P(GroupedGemmWgradTest, BitsDoNotDependOnTheCapacity) {
  constexpr std::int64_t kLive = 200, m = 136, n = 200;
  const Values a = normal(kLive * m), b = normal(kLive * n), before = normal(m * n);
  Values tokens;
  for (std::int64_t r = 0; r < kLive; ++r) tokens.push_back(static_cast<double>(random()() % kLive));
  for (const auto& [gathered, accumulate] : {std::pair{Gathered::kNone, true},
                                             {Gathered::kA, true},
                                             {Gathered::kB, true},
                                             {Gathered::kNone, false},
                                             {Gathered::kA, false},
                                             {Gathered::kB, false}}) {
    std::vector<Values> results;
    for (const std::int64_t capacity : {kLive, std::int64_t{4104}}) {
      const ExpertRanges routing{{0, static_cast<int>(kLive)}, capacity};
      Values index = tokens;
      index.resize(static_cast<std::size_t>(capacity));
      const auto operand_of = [&, gathered_side = gathered](const Values& x, std::int64_t width, Gathered side) {
        if (gathered_side != side) return Operand{input({capacity, width}, dtype(), padded(x, routing, width)), {}};
        return Operand{input({kLive, width}, dtype(), x), input({capacity}, DType::kInt32, index)};
      };
      const Operand left = operand_of(a, m, Gathered::kA), right = operand_of(b, n, Gathered::kB);
      const Tensor c = accumulate ? inout({m, n}, DType::kFp32, before) : output({m, n}, DType::kFp32);
      run(GroupedGemmWgrad{.a = left.x,
                           .a_index = left.index,
                           .b = right.x,
                           .b_index = right.index,
                           .offsets = offsets_of(routing),
                           .c = c,
                           .accumulate = accumulate});
      results.push_back(values(c));
    }
    EXPECT_EQ(results[0], results[1]);
  }
}

TEST_P(GroupedGemmWgradTest, ReplaysWithAnotherRouting) {
  const Operand a = operand(all_rows(), 16, false), b = operand(all_rows(), 24, true);
  const Tensor c = inout({3 * 16, 24}, DType::kFp32, normal(3 * 16 * 24));
  expect_replay_follows_offsets(GroupedGemmWgrad{.a = a.x, .b = b.x, .b_index = b.index, .c = c}, {c});
  expect_replay_follows_offsets(GroupedGemmWgrad{.a = a.x, .b = b.x, .b_index = b.index, .c = c, .accumulate = false},
                                {c});
}

TEST_P(GroupedGemmWgradTest, RefusesTwoIndices) {
  const ExpertRanges routing{{0, 4}, 4};
  const Operand a = operand(routing, 8, true), b = operand(routing, 8, true);
  const Tensor c = inout({8, 8}, DType::kFp32, normal(64));
  expect_refused(
      GroupedGemmWgrad{
          .a = a.x, .a_index = a.index, .b = b.x, .b_index = b.index, .offsets = offsets_of(routing), .c = c},
      "a_index and b_index together");
}

}  // namespace
}  // namespace megalith::test
