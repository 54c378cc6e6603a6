#include "core/device/near_cpus.h"

#include <gtest/gtest.h>

#include <vector>

namespace megalith {
namespace {

std::vector<int> listed(const char* text) {
  const cpu_set_t cpus = parse_cpu_list(text);
  std::vector<int> list;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &cpus)) list.push_back(cpu);
  }
  return list;
}

TEST(CpuList, IsOfRangesAndSingleCpus) {
  EXPECT_EQ(listed("0-2,8,10-11\n"), (std::vector<int>{0, 1, 2, 8, 10, 11}));
  EXPECT_EQ(listed("5"), std::vector<int>{5});
  EXPECT_EQ(listed("1022-5000"), (std::vector<int>{1022, 1023}));
  for (const char* const nothing : {"", "\n", "all", "-3", "7-"}) EXPECT_LE(listed(nothing).size(), 1u) << nothing;
}

}  // namespace
}  // namespace megalith
