// The ops of a mixture of experts: a million routed rows, hundreds of experts, several tiles in each dim.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <limits>

#include "core/memory/host_arena.h"
#include "moe/ops/grouped_gemm/grouped_gemm.h"
#include "moe/ops/rank_rows.h"
#include "moe/ops/route_rows.h"
#include "moe/ops/router.h"
#include "tests/support/device_tasks.h"
#include "tests/support/op_cases.h"
#include "tests/unit/ops/cuda_sizes.h"

namespace megalith::test {
namespace {

constexpr DeviceType kGpu = DeviceType::kCuda;

// Rows of experts chosen with weight 1 / (e + 1), except one unchosen expert; `spare` rows of the capacity are left.
struct Experts {
  std::vector<std::int32_t> offsets{0}, index;
  std::int64_t capacity;

  Experts(std::int64_t count, std::int64_t rows, std::int64_t tokens, std::int64_t spare) : capacity(rows + spare) {
    double all = 0;
    for (std::int64_t e = 0; e < count; ++e) all += e == count / 2 ? 0 : 1.0 / static_cast<double>(e + 1);
    double sum = 0;
    for (std::int64_t e = 0; e < count; ++e) {
      sum += e == count / 2 ? 0 : 1.0 / static_cast<double>(e + 1);
      offsets.push_back(static_cast<std::int32_t>(std::lround(static_cast<double>(rows) * sum / all)));
    }
    for (std::int64_t r = 0; r < capacity; ++r) index.push_back(static_cast<std::int32_t>((r * 7919) % tokens));
  }
  std::int64_t count() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
  std::int64_t max_rows() const {
    std::int32_t most = 0;
    for (std::size_t e = 1; e < offsets.size(); ++e) most = std::max(most, offsets[e] - offsets[e - 1]);
    return most;
  }
};

class CudaExpertSizesTest : public CudaSizes {
 protected:
  void grouped(const Experts& experts, std::int64_t tokens, std::int64_t k, std::int64_t n) {
    const std::int64_t rows = experts.capacity, count = experts.count();
    const std::string what = std::to_string(rows) + " rows, k " + std::to_string(k) + ", n " + std::to_string(n) + ": ";
    const GroupedCase c{.rows = rows, .k = k, .n = n, .experts = count, .dtype = dtype(), .tokens = tokens};
    compare(what + "forward",
            [&](Side& s) { return grouped_gemm(s, c, s.integers(experts.offsets), s.integers(experts.index)); });
    compare(what + "data gradient", [&](Side& s) { return grouped_data_gradient(s, c, s.integers(experts.offsets)); });
    for (const auto& [gathered, accumulate] :
         {std::pair{0, true}, {1, true}, {2, true}, {0, false}, {1, false}, {2, false}}) {  // none, a, b
      const auto make = [&, gathered = gathered, accumulate = accumulate](Side& s) {
        const Tensor index = s.integers(experts.index);
        return grouped_weight_gradient(s, c, s.integers(experts.offsets),
                                       {.dtype = gathered == 1 ? dtype() : DType::kFp32,
                                        .accumulate = accumulate,
                                        .a_index = gathered == 1 ? index : Tensor{},
                                        .b_index = gathered == 2 ? index : Tensor{}});
      };
      compare(what + "weight gradient, gathered " + std::to_string(gathered) + (accumulate ? "" : ", overwritten"),
              make, sums_of(experts.max_rows()));
    }
    for (const bool gathered : {false, true}) {
      SCOPED_TRACE(what + (gathered ? "gathered" : ""));
      forward_has_the_bits_of_its_parts(experts, {gathered ? tokens : rows, k}, n);
      for (const bool in_place : {false, true}) {
        backward_has_the_bits_of_its_parts(experts, {gathered ? tokens : rows, k}, n, in_place);
      }
    }
  }

  // Bytes of all GPU tensors after `act`.
  static std::vector<Bytes> after(Side& s, const std::function<void()>& act) {
    s.reset();
    act();
    return s.contents();
  }
  void forward_has_the_bits_of_its_parts(const Experts& experts, const Shape& a, std::int64_t n) {
    const std::int64_t rows = experts.capacity;
    Side s(kGpu);
    const GroupedGemmSwiglu op{.a = s.normal(a, dtype()),
                               .index = a[0] == rows ? Tensor{} : s.integers(experts.index),
                               .offsets = s.integers(experts.offsets),
                               .gate = s.normal({experts.count() * n, a[1]}, dtype(), 0.05f),
                               .up = s.normal({experts.count() * n, a[1]}, dtype(), 0.05f),
                               .row_weight = s.normal({rows}, DType::kFp32),
                               .h = s.output({rows, 2 * n}, dtype()),
                               .y = s.output({rows, n}, dtype())};
    const auto parts = after(s, [&] {
      launch(s.stream(), s.ready(product_of(op)));
      launch(s.stream(), RoutedSwigluForward{.x = op.h, .row_weight = op.row_weight, .offsets = op.offsets, .y = op.y});
    });
    EXPECT_TRUE(after(s, [&] { launch(s.stream(), s.ready(op)); }) == parts);
  }
  void backward_has_the_bits_of_its_parts(const Experts& experts, const Shape& dy, std::int64_t n, bool in_place) {
    const std::int64_t rows = experts.capacity;
    Side s(kGpu);
    const Tensor h = s.normal({rows, 2 * n}, dtype());
    const GroupedGemmSwigluBackward op{.dy = s.normal(dy, dtype()),
                                       .index = dy[0] == rows ? Tensor{} : s.integers(experts.index),
                                       .offsets = s.integers(experts.offsets),
                                       .b = s.normal({experts.count() * dy[1], n}, dtype(), 0.05f),
                                       .h = h,
                                       .row_weight = s.normal({rows}, DType::kFp32),
                                       .dh = in_place ? h : s.output({rows, 2 * n}, dtype()),
                                       .y = s.output({rows, n}, dtype()),
                                       .d_row_weight_partial = s.output({rows, (n + 63) / 64}, DType::kFp32)};
    const auto parts = after(s, [&] {
      launch(s.stream(), s.ready(product_of(op)));
      launch(s.stream(), RoutedSwigluBackward{.x = h,
                                              .dy = op.y,
                                              .row_weight = op.row_weight,
                                              .offsets = op.offsets,
                                              .dx = op.dh,
                                              .y = op.y,
                                              .d_row_weight_partial = op.d_row_weight_partial});
    });
    EXPECT_TRUE(after(s, [&] { launch(s.stream(), s.ready(op)); }) == parts) << (in_place ? "in place" : "");
  }
};
INSTANTIATE_TEST_SUITE_P(Types, CudaExpertSizesTest, testing::Values(DType::kFp32, DType::kBf16),
                         [](const auto& type) { return std::string(name_of(type.param)); });

TEST_P(CudaExpertSizesTest, GroupedProducts) {
  grouped(Experts(64, 6000, 1500, 77), 1500, 192, 320);
  grouped(Experts(2, 5000, 900, 9), 900, 448, 576);  // groups of row tiles and several tiles of columns
  grouped(Experts(256, 3000, 700, 0), 700, 64, 72);
  grouped(Experts(5, 4000, 999, 3), 999, 100, 130);  // not for the fast form
}

// A quarter of the multiprocessors is busy: the others share all tiles, in 4/3 of the time. With equally many tiles for
// each block the time would double, since some blocks would begin when others have ended.
TEST_P(CudaExpertSizesTest, ProductsGoWhereTheGpuIsFree) {
  if (dtype() == DType::kFp32) GTEST_SKIP() << "fp32 has one block for each tile";
  if (cuda_facts(use_cuda_device()).compute_capability < 90) GTEST_SKIP() << "older GPUs have one block for each tile";
  load_kernels();
  HostArena arena(kGpu, 64, "flag");
  int* const word = arena.allocate_as<int>(1);
  const std::atomic_ref flag(*word);
  Stream other(kGpu, "other");
  Side s(kGpu);
  constexpr std::int64_t kExperts = 16, kOfExpert = 2048, kRows = kExperts * kOfExpert, kWidth = 1024;
  std::vector<std::int32_t> even, index;
  for (std::int64_t e = 0; e <= kExperts; ++e) even.push_back(static_cast<std::int32_t>(e * kOfExpert));
  for (std::int64_t r = 0; r < kRows; ++r) index.push_back(static_cast<std::int32_t>(r * 7919 % kRows));
  const GroupedCase square{
      .rows = kRows, .k = kWidth, .n = kWidth, .experts = kExperts, .dtype = dtype(), .pair = false};
  const Tensor offsets = s.integers(even);
  const GroupedGemm product = s.ready(grouped_gemm(s, square, offsets));
  GroupedGemm gathered = product;
  gathered.index = s.integers(index);
  gathered.c = s.output({kRows, kWidth}, dtype());
  const GroupedGemmWgrad gradient = s.ready(grouped_weight_gradient(s, square, offsets, {.accumulate = false}));
  GroupedGemmWgrad together = gradient;
  together.b = s.normal({kRows, 2 * kWidth}, dtype());
  together.c = s.output({kExperts * kWidth, 2 * kWidth}, dtype());
  s.reset();
  const auto seconds = [&](const auto& op) {
    s.stream().synchronize();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 8; ++i) launch(s.stream(), op);
    s.stream().synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const auto each = [&] {
    return std::array{seconds(product), seconds(gathered), seconds(gradient), seconds(together)};
  };
  auto alone = each(), concurrent = alone;  // kernels are loaded
  const std::vector<Bytes> results = s.contents();
  concurrent.fill(std::numeric_limits<double>::infinity());
  const auto least = [](double a, double b) { return std::min(a, b); };
  // The least of several turns: other programs may use the GPU now and then.
  for (int turn = 0; turn < 9; ++turn) {
    std::ranges::transform(alone, each(), alone.begin(), least);
    s.reset();
    flag = 0;
    enqueue_hold(*other.cuda(), word, 1, other.cuda()->multiprocessors() / 4);
    seconds(product);  // the hold has begun after it
    std::ranges::transform(concurrent, each(), concurrent.begin(), least);
    flag = 1;
    other.synchronize();
    EXPECT_TRUE(s.contents() == results) << turn;
  }
  for (std::size_t i = 0; i < alone.size(); ++i) EXPECT_LT(concurrent[i], 1.65 * alone[i]) << i;
}

// Several times as many tiles as a block's ring has numbers, in experts of few rows: most tiles have one stage.
TEST_P(CudaExpertSizesTest, ManySmallTiles) {
  if (dtype() == DType::kFp32) GTEST_SKIP() << "fp32 has one block for each tile";
  const Experts experts(256, 12000, 3000, 5);
  const GroupedCase narrow{.rows = experts.capacity,
                           .k = 64,
                           .n = 1024,
                           .experts = experts.count(),
                           .dtype = dtype(),
                           .tokens = 3000,
                           .pair = false};
  for (const bool gathered : {false, true}) {
    const std::int64_t rows = gathered ? 3000 : experts.capacity;
    forward_has_the_bits_of_its_parts(experts, {rows, 64}, 1536);
    backward_has_the_bits_of_its_parts(experts, {rows, 64}, 1536, gathered);
    for (const DType sum : {DType::kFp32, dtype()}) {  // each has a separate kernel form
      compare(
          "weight gradient in " + std::string(name_of(sum)) + (gathered ? ", gathered" : ""),
          [&](Side& s) {
            const Tensor index = gathered ? s.integers(experts.index) : Tensor{};
            return grouped_weight_gradient(s, narrow, s.integers(experts.offsets), {.dtype = sum, .a_index = index});
          },
          sums_of(experts.max_rows()));
    }
  }
}

TEST_P(CudaExpertSizesTest, AMillionRows) {
  const Experts experts(256, (1 << 20) - 5, 4096, 5);
  const std::int64_t rows = experts.capacity;
  const GroupedCase c{.rows = rows, .k = 64, .n = 8, .experts = 256, .dtype = dtype(), .tokens = 4096, .pair = false};
  compare("product",
          [&](Side& s) { return grouped_gemm(s, c, s.integers(experts.offsets), s.integers(experts.index)); });
  compare(
      "gather",
      [&](Side& s) {
        return PermuteRows{.x = s.normal({4096, 24}, dtype()),
                           .index = s.integers(experts.index),
                           .offsets = s.integers(experts.offsets),
                           .y = s.output({rows, 24}, dtype())};
      },
      kExact);
}

TEST_P(CudaExpertSizesTest, Routing) {
  if (dtype() == DType::kBf16) GTEST_SKIP() << "the router's numbers are fp32";
  constexpr std::int64_t kTokens = 1 << 17;
  for (const auto& [experts, choices] : {std::pair<std::int64_t, std::int64_t>{256, 8}, {128, 8}, {8, 2}, {60, 16}}) {
    const std::string what = std::to_string(experts) + " experts, " + std::to_string(choices) + " choices";
    compare("router, " + what, [&](Side& s) {
      return RouterTopk{.logits = s.normal({kTokens / 8, experts}, DType::kFp32),
                        .choice = s.output({kTokens / 8, choices}, DType::kInt32),
                        .weight = s.output({kTokens / 8, choices}, DType::kFp32)};
    });
    std::vector<std::int32_t> choice;
    for (std::int64_t i = 0; i < kTokens * choices; ++i) {
      choice.push_back(static_cast<std::int32_t>((i / choices * 31 + i % choices * (experts / choices)) % experts));
    }
    compare(
        "offsets, " + what,
        [&](Side& s) {
          Tensor chosen = s.integers(choice);
          chosen = chosen.view({kTokens, choices});
          return ExpertOffsets{.choice = chosen,
                               .offsets = s.output({experts + 1}, DType::kInt32),
                               .token = s.output({kTokens * choices}, DType::kInt32),
                               .position = s.output({kTokens, choices}, DType::kInt32)};
        },
        kExact);
  }
}

// A rank's experts out of 256, for choices that arrived in part of the capacity, with capacity for some of the rows.
TEST_P(CudaExpertSizesTest, RoutingOfARank) {
  if (dtype() == DType::kBf16) GTEST_SKIP() << "there are only integers";
  constexpr std::int64_t kTokens = 1 << 16, kArrived = 50001, kExperts = 32, kChoices = 8;
  std::vector<std::int32_t> choice;
  for (std::int64_t i = 0; i < kTokens * kChoices; ++i)
    choice.push_back(static_cast<std::int32_t>((i / kChoices * 31 + i % kChoices * 32) % 256));
  for (const std::int64_t room : {40000, 60000}) {
    compare(
        "offsets with room for " + std::to_string(room),
        [&](Side& s) {
          Tensor chosen = s.integers(choice).view({kTokens, kChoices});
          Tensor position = s.output(chosen.shape, DType::kInt32);
          chosen.bound = position.bound = s.integers({static_cast<std::int32_t>(kArrived)}).as<const std::int32_t>();
          return ExpertOffsets{.choice = chosen,
                               .offsets = s.output({kExperts + 1}, DType::kInt32),
                               .token = s.output({room}, DType::kInt32),
                               .position = position,
                               .wanted = s.output({1}, DType::kInt32),
                               .first_expert = 3 * kExperts,
                               .all_experts = 256};
        },
        kExact);
  }
  compare(
      "chosen ranks",
      [&](Side& s) {
        return ChosenRanks{.choice = s.integers(choice).view({kTokens, kChoices}),
                           .ranks = s.output({kTokens, 16}, DType::kInt32),
                           .experts_per_rank = 32,
                           .copies = 2};
      },
      kExact);
}

TEST_P(CudaExpertSizesTest, CombineOfGroups) {
  constexpr std::int64_t kTokens = 701, kGroups = 8;
  for (const std::int64_t choices : {1, 2, 6, 8, 11}) {
    std::vector<std::int32_t> position, choice;
    for (std::int64_t i = 0; i < kTokens * choices; ++i) {
      position.push_back(i % 97 == 5 ? -1 : static_cast<std::int32_t>(i * 7919 % (kTokens * choices)));
      choice.push_back(static_cast<std::int32_t>(i * 37 % 64));
    }
    for (const std::int64_t width : {1000, 2048}) {
      const std::string what = std::to_string(choices) + " choices of " + std::to_string(width);
      for (const std::int64_t separate : {std::int64_t{1}, kGroups}) {
        compare(
            what + (separate > 1 ? ", apart" : ""),
            [&](Side& s) {
              const Tensor positions = s.integers(position).view({kTokens, choices});
              return UnpermuteGroups{.x = s.normal({kTokens * choices, width}, dtype()),
                                     .position = positions,
                                     .choice = s.integers(choice).view({kTokens, choices}),
                                     .y = s.output({kTokens, separate * width}, dtype()),
                                     .experts_per_group = 64 / kGroups,
                                     .groups = kGroups};
            },
            kExact);
      }
      compare(
          what + ", parts",
          [&](Side& s) {
            const Tensor positions = s.integers(position).view({kTokens, choices});
            return UnpermuteRows{.x = s.normal({kTokens * choices, 4 * width}, dtype()),
                                 .position = positions,
                                 .y = s.output({kTokens, width}, dtype())};
          },
          kExact);
    }
  }
}

TEST_P(CudaExpertSizesTest, Combine) {
  constexpr std::int64_t kTokens = 701;
  for (const std::int64_t choices : {1, 2, 6, 8, 11}) {
    std::vector<std::int32_t> position;
    for (std::int64_t i = 0; i < kTokens * choices; ++i) {
      position.push_back(i % 97 == 5 ? -1 : static_cast<std::int32_t>(i * 7919 % (kTokens * choices)));
    }
    for (const std::int64_t width : {1000, 2048}) {
      compare(
          std::to_string(choices) + " choices of " + std::to_string(width),
          [&](Side& s) {
            const Tensor positions = s.integers(position).view({kTokens, choices});
            return UnpermuteRows{.x = s.normal({kTokens * choices, width}, dtype()),
                                 .position = positions,
                                 .y = s.output({kTokens, width}, dtype())};
          },
          kExact);
    }
  }
}

}  // namespace
}  // namespace megalith::test
