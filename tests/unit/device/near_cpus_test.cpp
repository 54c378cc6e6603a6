#include "core/device/near_cpus.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/device/memory_node.h"
#include "tests/support/test_folder.h"

namespace megalith {
namespace {

cpu_set_t allowed() {
  cpu_set_t cpus{};
  EXPECT_EQ(sched_getaffinity(0, sizeof(cpus), &cpus), 0);
  return cpus;
}
int first_of(const cpu_set_t& cpus) {
  int cpu = 0;
  while (!CPU_ISSET(cpu, &cpus)) ++cpu;
  return cpu;
}

TEST(NearCpus, AreThoseThatTheSystemSaysOfThePciDevice) {
  const TestFolder files;
  const std::string system = files.path();
  const std::string folder = system + "/bus/pci/devices/0000:1b:00.0";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/local_cpulist") << "4-6,9\n";
  const cpu_set_t near = cpus_near_pci("0000:1B:00.0", system);
  EXPECT_EQ(CPU_COUNT(&near), 4);
  for (const int cpu : {4, 5, 6, 9}) EXPECT_TRUE(CPU_ISSET(cpu, &near)) << cpu;
  const cpu_set_t unknown = cpus_near_pci("0000:1C:00.0", system);
  EXPECT_EQ(CPU_COUNT(&unknown), 0);
  EXPECT_EQ(node_of_pci("0000:1B:00.0", system), -1);  // no such file
  for (const int node : {-1, 0, 12}) {
    std::ofstream(folder + "/numa_node") << node << "\n";
    EXPECT_EQ(node_of_pci("0000:1B:00.0", system), node);
  }
}

// Pages that a thread is the first to write are of its node, unless that is full.
TEST(MemoryNode, IsThatOfTheThreadThatWroteThePages) {
  cpu_set_t one{};
  CPU_SET(first_of(allowed()), &one);
  const RunNear there(one);
  unsigned cpu = 0, node = 0;
  ASSERT_EQ(getcpu(&cpu, &node), 0);
  constexpr std::size_t kBytes = 64 << 10;
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::memset(memory, 1, kBytes);
  const MemoryNodes nodes = nodes_of(memory, kBytes);
  const MemoryNodes none = nodes_of(memory, 0);
  munmap(memory, kBytes);
  EXPECT_EQ(none.first, -1);
  if (nodes.first < 0) GTEST_SKIP() << "the kernel does not tell where memory is";
  EXPECT_EQ(nodes.first, static_cast<int>(node));
  EXPECT_EQ(nodes.last, static_cast<int>(node));
  EXPECT_EQ(nodes_of(memory, kBytes).first, -1);  // no longer mapped
}

TEST(NearCpus, AThreadStaysWithinWhatItWasAllowedAndGoesBack) {
  const cpu_set_t before = allowed();
  const int cpu = first_of(before);
  cpu_set_t near{}, elsewhere{};
  CPU_SET(cpu, &near);
  for (int other = 0; other < CPU_SETSIZE; ++other) {
    if (CPU_ISSET(other, &before)) continue;
    CPU_SET(other, &near);
    CPU_SET(other, &elsewhere);
  }
  {
    const RunNear there(near);
    const cpu_set_t now = allowed();
    EXPECT_EQ(CPU_COUNT(&now), 1);
    EXPECT_EQ(sched_getcpu(), cpu);
  }
  for (const cpu_set_t& none : {cpu_set_t{}, elsewhere}) {
    const RunNear there(none);
    const cpu_set_t now = allowed();
    EXPECT_TRUE(CPU_EQUAL(&now, &before));
  }
  const cpu_set_t after = allowed();
  EXPECT_TRUE(CPU_EQUAL(&after, &before));
}

}  // namespace
}  // namespace megalith
