// NCCL in a build without CUDA.
#include "core/device/device.h"
#include "parallel/comm/nccl/nccl_communicator.h"

namespace megalith {

std::unique_ptr<Communicator> gpu_world(const MpiRuntime&) { refuse_cuda(); }

bool can_share_memory(Communicator&, std::span<const int>) { return false; }

}  // namespace megalith
