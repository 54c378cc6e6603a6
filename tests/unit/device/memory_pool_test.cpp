#include "core/memory/memory_pool.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/support/matchers.h"
#include "tests/unit/device/test_ops.h"

namespace megalith {
namespace {

TEST(MemoryPool, GivesAlignedMemoryOfAnySize) {
  MemoryPool pool(DeviceType::kCpu);
  std::set<void*> addresses;
  for (std::size_t bytes : {0, 1, 255, 256, 257, 4095, (2 << 20) - 1, (2 << 20) + 1, 5 << 20}) {
    void* address = pool.allocate(bytes, MemoryCategory::kWorkspace, "x");
    ASSERT_NE(address, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(address) % 256, 0u) << bytes;
    EXPECT_TRUE(addresses.insert(address).second);
    std::memset(address, 0x5a, bytes);
  }
}

TEST(MemoryPool, GivesAFreedBlockOutAgainInsteadOfAskingTheSystem) {
  MemoryPool pool(DeviceType::kCpu);
  void* first = pool.allocate(8192, MemoryCategory::kWorkspace, "a");
  pool.free(first);
  EXPECT_EQ(pool.system_allocations(), 1);
  EXPECT_EQ(pool.allocate(8000, MemoryCategory::kGradients, "b"), first);
  EXPECT_EQ(pool.system_allocations(), 1);
  pool.free(first);
  EXPECT_NE(pool.allocate(4096, MemoryCategory::kWorkspace, "too small to take a block twice its size"), first);
  EXPECT_EQ(pool.system_allocations(), 2);
}

TEST(MemoryPool, KeepsStatisticsByCategory) {
  MemoryPool pool(DeviceType::kCpu);
  void* weights = pool.allocate(1000, MemoryCategory::kParameters, "w");
  void* grads = pool.allocate(300, MemoryCategory::kGradients, "g");
  const auto of = [&](MemoryCategory c) { return pool.allocated_by_category()[static_cast<std::size_t>(c)]; };
  EXPECT_EQ(of(MemoryCategory::kParameters), 1024u);
  EXPECT_EQ(of(MemoryCategory::kGradients), 512u);
  EXPECT_EQ(pool.allocated_bytes(), 1536u);
  EXPECT_EQ(pool.reserved_bytes(), 1536u);
  pool.free(weights);
  EXPECT_EQ(of(MemoryCategory::kParameters), 0u);
  EXPECT_EQ(pool.allocated_bytes(), 512u);
  EXPECT_EQ(pool.reserved_bytes(), 1536u);
  EXPECT_EQ(pool.peak_allocated_bytes(), 1536u);
  pool.free(grads);
  EXPECT_EQ(pool.allocated_bytes(), 0u);
}

TEST(MemoryPool, StatisticsSurviveARandomHistory) {
  MemoryPool pool(DeviceType::kCpu);
  std::mt19937 random(3);
  std::vector<std::pair<void*, std::size_t>> live;
  std::size_t allocated = 0;
  std::size_t peak = 0;
  for (int i = 0; i < 5000; ++i) {
    if (live.empty() || random() % 2 == 0) {
      const std::size_t bytes = random() % 5000;
      void* address = pool.allocate(bytes, MemoryCategory::kWorkspace, "x");
      const auto* begin = static_cast<std::byte*>(address);
      for (const auto& [other, size] : live) {
        const auto* other_begin = static_cast<std::byte*>(other);
        ASSERT_TRUE(begin + bytes <= other_begin || other_begin + size <= begin) << "two live blocks overlap";
      }
      live.emplace_back(address, bytes);
      allocated += std::max<std::size_t>(256, (bytes + 255) / 256 * 256);
      peak = std::max(peak, allocated);
    } else {
      const std::size_t which = random() % live.size();
      pool.free(live[which].first);
      allocated -= std::max<std::size_t>(256, (live[which].second + 255) / 256 * 256);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
    }
    ASSERT_EQ(pool.allocated_bytes(), allocated);
  }
  EXPECT_EQ(pool.peak_allocated_bytes(), peak);
  EXPECT_GE(pool.reserved_bytes(), allocated);
  EXPECT_LT(pool.system_allocations(), 2500) << "blocks are not used again";
}

TEST(MemoryPool, TheLimitIsExitCode6WithTheTenLargestOwnersInOrder) {
  MemoryPool pool(DeviceType::kCpu, 96 << 20);
  for (int i = 1; i <= 12; ++i)
    pool.allocate(static_cast<std::size_t>(i) << 20, MemoryCategory::kParameters, fmt::format("w{}", i));
  pool.allocate(1 << 19, MemoryCategory::kGradients, "twice");  // the two count as one owner of 1 MiB
  pool.allocate(1 << 19, MemoryCategory::kGradients, "twice");
  pool.allocate(12 << 19, MemoryCategory::kGradients, "g");
  const auto overflow = [&] { pool.allocate(100 << 20, MemoryCategory::kOptimizer, "moments"); };
  EXPECT_EQ(exit_code_of(overflow), ExitCode::kOutOfMemory);
  const std::string message = error_of(overflow);
  EXPECT_THAT(message, HasSubstr("100.00 MiB for moments"));
  EXPECT_THAT(message, HasSubstr("limit of 96.00 MiB"));
  EXPECT_THAT(message, HasSubstr("w12 (parameters) 12.00 MiB, w11 (parameters) 11.00 MiB, w10 (parameters) 10.00 MiB"));
  EXPECT_THAT(message, HasSubstr("w7 (parameters) 7.00 MiB, w6 (parameters) 6.00 MiB, g (gradients) 6.00 MiB"));
  EXPECT_THAT(message, HasSubstr("w4 (parameters)"));
  EXPECT_THAT(message, Not(HasSubstr("w3 (parameters)")));
  EXPECT_THAT(message, Not(HasSubstr("twice")));
}

TEST(MemoryPool, GivesCachedBlocksBackBeforeItRefuses) {
  MemoryPool pool(DeviceType::kCpu, 8 << 20);
  void* big = pool.allocate(6 << 20, MemoryCategory::kWorkspace, "big");
  pool.free(big);
  pool.allocate(7 << 20, MemoryCategory::kWorkspace, "bigger");
  EXPECT_EQ(pool.reserved_bytes(), std::size_t{7} << 20);
  EXPECT_EQ(exit_code_of([&] { pool.allocate(2 << 20, MemoryCategory::kWorkspace, "more"); }), ExitCode::kOutOfMemory);
  pool.allocate(1 << 20, MemoryCategory::kWorkspace, "the rest");
  EXPECT_EQ(pool.reserved_bytes(), std::size_t{8} << 20);
}

TEST(MemoryPool, ANegativeSizeIsOutOfMemoryNotASmallBlock) {
  MemoryPool pool(DeviceType::kCpu);
  for (std::int64_t bytes : {std::int64_t{-1}, std::int64_t{-200}, std::numeric_limits<std::int64_t>::min()}) {
    EXPECT_EQ(exit_code_of([&] { pool.allocate(static_cast<std::size_t>(bytes), MemoryCategory::kWorkspace, "x"); }),
              ExitCode::kOutOfMemory);
  }
}

TEST(MemoryPool, FreeingWhatWasNotGivenOutIsAnError) {
  MemoryPool pool(DeviceType::kCpu);
  void* address = pool.allocate(10, MemoryCategory::kWorkspace, "x");
  pool.free(address);
  EXPECT_EQ(exit_code_of([&] { pool.free(address); }), ExitCode::kInternal);
  EXPECT_EQ(exit_code_of([&] { pool.free(nullptr); }), ExitCode::kInternal);
}

TEST(MemoryPool, APlanNeverGivesAnAddressTwiceAndHasNoLimit) {
  MemoryPool pool(DeviceType::kPlan, 1 << 20);
  std::vector<std::pair<std::uintptr_t, std::size_t>> given;
  for (std::size_t i = 0; i < 500; ++i) {
    const std::size_t bytes = i * i * 1000;
    const auto address = reinterpret_cast<std::uintptr_t>(pool.allocate(bytes, MemoryCategory::kWorkspace, "x"));
    if (!given.empty()) {
      ASSERT_GE(address, given.back().first + std::max<std::size_t>(given.back().second, 1));
    }
    given.emplace_back(address, bytes);
    if (i % 2 == 0) pool.free(reinterpret_cast<void*>(address));
  }
  void* huge = pool.allocate(std::size_t{3} << 40, MemoryCategory::kOptimizer, "moments of a large model");
  EXPECT_GE(pool.peak_allocated_bytes(), std::size_t{3} << 40);
  pool.free(huge);
  EXPECT_EQ(pool.reserved_bytes(), pool.allocated_bytes());
}

TEST(MemoryPool, NamesItsCategories) {
  EXPECT_EQ(name_of(MemoryCategory::kMainParameters), "main parameters");
  EXPECT_EQ(name_of(MemoryCategory::kOther), "other");
}

}  // namespace
}  // namespace megalith
