#include "core/device/near_cpus.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

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
  const std::string system = testing::TempDir() + "/near_cpus";
  const std::string folder = system + "/bus/pci/devices/0000:1b:00.0";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/local_cpulist") << "4-6,9\n";
  const cpu_set_t near = cpus_near_pci("0000:1B:00.0", system);
  EXPECT_EQ(CPU_COUNT(&near), 4);
  for (const int cpu : {4, 5, 6, 9}) EXPECT_TRUE(CPU_ISSET(cpu, &near)) << cpu;
  const cpu_set_t unknown = cpus_near_pci("0000:1C:00.0", system);
  EXPECT_EQ(CPU_COUNT(&unknown), 0);
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
