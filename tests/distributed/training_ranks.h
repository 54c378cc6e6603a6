// Shared code of test programs' mains whose ranks train.
#pragma once

#include <chrono>
#include <cstdlib>
#include <memory>

#include "apps/train/run_setup.h"
#include "parallel/comm/nccl/nccl_communicator.h"
#include "tests/distributed/rank_device.h"
#include "tests/distributed/run_tests.h"
#include "tests/support/test_folder.h"

namespace megalith::test {

// Runs the tests on the ranks that mpirun started, and returns the program's exit code. While the tests run, `world`
// joins the hosts' memory, and `devices` joins the GPUs' memory or equals `world`.
inline int run_training_tests(int argc, char** argv, DeviceType device, Communicator*& world, Communicator*& devices) {
  set_deterministic_environment();
  set_graphs_environment();
  const TestFolder cache;
  setenv("MEGALITH_CACHE", cache.path("cache").c_str(), 1);
  MpiRuntime mpi(argc, argv, {.timeout = std::chrono::seconds(60)});
  init_tests(argc, argv, mpi);
  if (!select_rank_device(mpi, device)) return kSkipped;
  const std::unique_ptr<Communicator> hosts = mpi.world();
  const std::unique_ptr<Communicator> gpus = device == DeviceType::kCuda ? gpu_world(mpi) : nullptr;
  world = hosts.get();
  devices = gpus ? gpus.get() : world;
  return run_tests(mpi, *world);
}

}  // namespace megalith::test
