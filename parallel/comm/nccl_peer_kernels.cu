#include <cuda/atomic>
#include <string>

#include "core/base/error.h"
#include "core/device/cuda_check.h"
#include "core/device/cuda_fault.cuh"
#include "parallel/comm/nccl_peer_kernels.h"

namespace megalith {

namespace {

void raise_wrong_message(const std::int64_t* values) {
  fail({.subject = "a message in shared GPU memory",
        .expected = "at offset " + std::to_string(values[0] - 1) + ", as here",
        .got = std::to_string(values[1] - 1) + " on the peer",
        .remedy = "this is a defect of the program: report it, with the flags of the run"});
}

using SystemWord = cuda::atomic_ref<std::uint64_t, cuda::thread_scope_system>;

// One warp and few registers, so that it runs beside a product that fills the multiprocessor.
__global__ void __launch_bounds__(32)
    meet(std::uint64_t* theirs, std::uint64_t value, std::uint64_t* mine, std::uint64_t expected,
         const volatile std::uint32_t* stop, CudaFault* fault, CudaFault::Raise raise) {
  if (threadIdx.x != 0) return;
  SystemWord(*theirs).store(value, cuda::memory_order_release);
  const SystemWord word(*mine);
  std::uint64_t got = 0;
  for (unsigned polls = 1; (got = word.load(cuda::memory_order_acquire)) == 0; ++polls) {
    if (polls % 64 == 0 && *stop != 0) return;  // a read across the bus
  }
  word.store(0, cuda::memory_order_relaxed);
  if (got != expected) {
    report_fault(fault, raise, static_cast<std::int64_t>(expected), static_cast<std::int64_t>(got));
  }
}

}  // namespace

void meet_peers(CudaStream& stream, std::uint64_t* theirs, std::uint64_t value, std::uint64_t* mine,
                std::uint64_t expected, const std::uint32_t* stop) {
  meet<<<1, 32, 0, stream.handle()>>>(theirs, value, mine, expected, stop, stream.fault(), raise_wrong_message);
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

}  // namespace megalith
