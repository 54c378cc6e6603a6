// Tests of host memory ahead of a run: reports of machines and control groups, and rejected runs.
#include "core/base/machine/host_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "apps/config/machine_facts.h"
#include "apps/config/offload_options.h"
#include "apps/planning/memory_checks.h"
#include "apps/train/run_setup.h"
#include "parallel/comm/on_all_ranks.h"
#include "tests/support/error_of.h"
#include "tests/support/matchers.h"
#include "tests/thread_ranks/thread_communicator.h"
#include "tests/unit/train/training_support.h"

namespace megalith::test {
namespace {

constexpr std::size_t kMib = 1 << 20, kGib = 1 << 30;

class Machine {
 public:
  Machine() {
    write("proc/meminfo", "MemTotal:       4194304 kB\nMemFree:         524288 kB\nMemAvailable:   2097152 kB\n");
  }
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = folder_.path(path);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::size_t available() const { return available_bytes(folder_.path("")); }

 private:
  TestFolder folder_;
};

TEST(HostMemory, IsWhatTheMachineCanGive) {
  const Machine machine;
  EXPECT_EQ(machine.available(), 2 * kGib);
  machine.write("proc/self/cgroup", "0::/\n");
  machine.write("sys/fs/cgroup/memory.max", "max\n");
  machine.write("sys/fs/cgroup/memory.current", "1000\n");
  EXPECT_EQ(machine.available(), 2 * kGib);
}

// The narrowest of those around the process; pages of files that are not in use can go.
TEST(HostMemory, IsLimitedByControlGroups) {
  const Machine machine;
  machine.write("proc/self/cgroup", "0::/jobs/7\n");
  machine.write("sys/fs/cgroup/jobs/memory.max", std::to_string(900 * kMib));
  machine.write("sys/fs/cgroup/jobs/memory.current", std::to_string(500 * kMib));
  machine.write("sys/fs/cgroup/jobs/7/memory.max", "max\n");
  machine.write("sys/fs/cgroup/jobs/7/memory.current", std::to_string(400 * kMib));
  EXPECT_EQ(machine.available(), 400 * kMib);
  machine.write("sys/fs/cgroup/jobs/memory.stat", "anon 5\ninactive_file " + std::to_string(100 * kMib) + "\n");
  EXPECT_EQ(machine.available(), 500 * kMib);
  machine.write("sys/fs/cgroup/jobs/7/memory.max", std::to_string(300 * kMib));
  EXPECT_EQ(machine.available(), 1u);  // full: 0 would mean unknown
}

TEST(HostMemory, IsLimitedByControlGroupsOfTheFirstVersion) {
  const Machine machine;
  machine.write("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/job\n3:cpuset:/\n0::/\n");
  const std::string group = "sys/fs/cgroup/memory/job/memory.";
  machine.write(group + "limit_in_bytes", "9223372036854771712\n");
  machine.write(group + "usage_in_bytes", std::to_string(700 * kMib));
  EXPECT_EQ(machine.available(), 2 * kGib);
  machine.write(group + "limit_in_bytes", std::to_string(1000 * kMib));
  machine.write(group + "stat", "cache 1\ntotal_inactive_file " + std::to_string(50 * kMib) + "\n");
  EXPECT_EQ(machine.available(), 350 * kMib);
}

// Three ranks of one host; the middle one keeps nothing there.
TEST(HostMemory, OfAllRanksOfAHostIsCheckedBeforeTheRun) {
  const auto check = [](std::size_t available, std::size_t staging = 0, std::size_t kept = kGib) {
    ThreadWorld world(3, std::chrono::seconds(60));
    world.run([&](Communicator& group) {
      constexpr std::size_t kPlanned[] = {2, 0, 3};
      StepPlans plans;
      plans.host.peak_bytes = kPlanned[group.rank()] * kept;
      check_host_memory(plans, staging, group, available);
    });
  };
  check(5 * kGib);
  check(0);  // not known
  EXPECT_THAT(error_of(ExitCode::kOutOfMemory, [&] { check(4 * kGib); }),
              AllOf(StartsWith("--offload-modules: memory of host "),
                    HasSubstr("expected at most 4.00 GiB, its available memory, got a forecast of 5.00 GiB for kept "
                              "activations of 2 ranks, 3.00 of rank 2; offload fewer kinds or layers, or lower "
                              "--activation-offload-fraction or --offload-mb-per-layer")));
  check(8 * kGib, kGib);
  EXPECT_THAT(error_of(ExitCode::kOutOfMemory, [&] { check(7 * kGib, kGib); }),
              HasSubstr("a forecast of 8.00 GiB for "));
  EXPECT_THAT(
      error_of(ExitCode::kOutOfMemory, [&] { check(2 * kGib, kGib, 0); }),
      AllOf(StartsWith("--async-save: memory of host "),
            HasSubstr(
                "a forecast of 3.00 GiB for copies of checkpoints of 3 ranks, 1.00 of rank 0; remove --async-save")));
}

// Hosts have different memory, and one reports none: all ranks choose what to move by the same number.
TEST(HostMemory, OfTheFullestHostAllRanksTakeTheShare) {
  ThreadWorld world(3, std::chrono::seconds(60));
  world.run([&](Communicator& group) {
    constexpr std::size_t kAvailable[] = {9 * kGib, 0, 6 * kGib};
    EXPECT_EQ(least_share_of_host(group, kAvailable[group.rank()]), 2 * kGib);
    EXPECT_EQ(least_share_of_host(group, 0), 0u);
  });
}

// Memory that auto may plan for, as in train. If kinds are listed, no share is needed.
TEST(HostMemory, AutoTakesARanksShareOfWhatTheHostHas) {
  ThreadWorld world(2, std::chrono::seconds(60));
  world.run([&](Communicator& group) {
    Options options;
    options.offload.offload_modules = {"act"};
    take_host_share(options, group, 6 * kGib);
    EXPECT_EQ(options.machine.host_share, 0u);
    options.offload.offload_modules = {"auto"};
    for (const DeviceType device : {DeviceType::kCpu, DeviceType::kCuda}) {
      options.device = device;
      take_host_share(options, group, 6 * kGib);
      EXPECT_EQ(options.machine.host_share, 3 * kGib);
      EXPECT_EQ(options.machine.host_is_device, device == DeviceType::kCpu);
    }
  });
}

// Two of three ranks share a GPU; each alone would fit.
TEST(GpuMemory, OfRanksThatShareOneIsCheckedTogether) {
  const auto check = [](std::size_t free) {
    ThreadWorld world(3, std::chrono::seconds(60));
    world.run([&](Communicator& group) {
      MemoryUse use;
      use.arena = static_cast<std::size_t>(group.rank() + 1) * kGib;
      const RankGpu gpu{.name = group.rank() < 2 ? "0000:1B:00.0 of a" : "0000:1B:00.0 of b",
                        .memory = {.free = free, .total = 4 * kGib}};
      check_gpu_memory(use, gpu, group);
    });
  };
  check(3 * kGib);
  EXPECT_THAT(error_of(ExitCode::kOutOfMemory, [&] { check(3 * kGib - 1); }),
              HasSubstr("memory of GPU 0000:1B:00.0 of a: expected at most 3.00 GiB, the free memory of 4.00, "
                        "got a forecast of 3.00 GiB for the 2 ranks that share it, 1.00 of this one (activations and "
                        "temporaries 1.00); lower --micro-batch-size"));
}

TEST(HostMemory, AFullHostIsNotAnUnknownOne) {
  EXPECT_EQ(share_of_rank(10, 2), 5u);
  EXPECT_EQ(share_of_rank(1, 2), 1u);
  EXPECT_EQ(share_of_rank(0, 2), 0u);
}

TEST(HostMemory, ShardsEmbeddingAndHeadWhereItHasNoRoomForWholeOnes) {
  const Words flags = tiny_flags() + words(
                                         "--data-parallel-sharding-strategy optim_grads_params --vocab-size 4000 "
                                         "--untie-embeddings-and-output-weights --global-batch-size 8");
  // Whether embedding and head are sharded, for a share of the host in tenths.
  const auto decided = [&](const Words& more, std::size_t tenths) {
    const Options options = parse_flags(App::kTrain, flags + more).options;
    bool sharded = false;
    ThreadWorld(4).run([&](Communicator& world) {
      RunSetup setup = prepare_run(options, world.rank(), world.size());
      const std::size_t whole = memory_use(setup.plans).total();
      decide_on_ends(setup, world, tenths * whole * 4 / 10);
      if (world.rank() != 0) return;
      sharded = setup.options.machine.ends_exceed_memory;
      EXPECT_EQ(memory_use(setup.plans).total() < whole, sharded);
    });
    return sharded;
  };
  EXPECT_FALSE(decided({}, 0)) << "not known";
  EXPECT_FALSE(decided({}, 12));
  EXPECT_TRUE(decided({}, 8));
  EXPECT_FALSE(decided({"--deterministic-mode"}, 8));
  EXPECT_FALSE(decided(stages(2), 8)) << "no less";
}

}  // namespace
}  // namespace megalith::test
