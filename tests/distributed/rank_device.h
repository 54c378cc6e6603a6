// A GPU for each rank of a test program.
#pragma once

#include <cstdio>
#include <memory>

#include "core/device/cuda_device.h"
#include "core/device/device.h"
#include "parallel/comm/mpi/mpi_runtime.h"
#include "parallel/comm/nccl/nccl_communicator.h"

namespace megalith::test {

inline constexpr int kSkipped = 77;  // exit code

// False, after rank 0 reported the reason, if this machine cannot give each of its ranks a GPU.
inline bool select_rank_device(const MpiRuntime& mpi, DeviceType device) {
  if (device != DeviceType::kCuda) return true;
  const int count = cuda_built() ? cuda_facts(0).count : 0;
  if (count < mpi.gpus_needed()) {
    if (mpi.rank() == 0) std::printf("skipped: needs %d GPUs, found %d\n", mpi.gpus_needed(), count);
    return false;
  }
  select_cuda_device(mpi.gpu());
  return true;
}

// A new group of all ranks, whose streams are on `device`; collective.
inline std::unique_ptr<Communicator> world_on(MpiRuntime& mpi, DeviceType device) {
  return device == DeviceType::kCuda ? gpu_world(mpi) : mpi.world();
}

}  // namespace megalith::test
