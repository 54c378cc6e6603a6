// Errors of a build without CUDA for requests of a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "core/device/cuda_device.h"
#include "core/device/cuda_memory.h"
#include "core/memory/host_arena.h"
#include "core/memory/memory_pool.h"
#include "tests/unit/device/test_ops.h"

namespace megalith {
namespace {

TEST(NoCuda, RefusesAGpuWithExitCode2) {
  if (cuda_built()) GTEST_SKIP() << "this build has CUDA";
  EXPECT_EQ(default_device(), DeviceType::kCpu);
  EXPECT_NE(test::missing(DeviceType::kCuda), "");
  const std::function<void()> calls[] = {
      [] { require_built(DeviceType::kCuda); },
      [] { Stream(DeviceType::kCuda, "compute"); },
      [] { MemoryPool pool(DeviceType::kCuda); },
      [] { HostArena(DeviceType::kCuda, 64, "test"); },
      [] { select_cuda_device(0); },
      [] { use_cuda_device(); },
      [] { static_cast<void>(cuda_facts(0).count); },
      [] { static_cast<void>(cuda_memory().free); },
      [] { CudaStream stream; },
  };
  for (const auto& call : calls) {
    EXPECT_EQ(exit_code_of(call), ExitCode::kUsage);
    EXPECT_THAT(error_of(call), testing::HasSubstr("--device cuda: expected cpu, in a build without the CUDA backend"));
  }
}

}  // namespace
}  // namespace megalith
