#include <cuda_runtime.h>

#include <deque>
#include <mutex>

#include "core/base/error.h"
#include "core/device/cuda/check.h"
#include "core/device/cuda/fault.cuh"
#include "core/ops/cuda_launch.cuh"
#include "tests/support/device_tasks.h"

namespace megalith::test {

namespace {

constexpr long long kPatience = 10'000'000'000;  // ns

__device__ long long nanoseconds() {
  long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

__global__ void spin(const volatile int* flag, int value, unsigned pause) {
  const long long start = nanoseconds();
  while (*flag < value && nanoseconds() - start < kPatience) __nanosleep(pause);
  __threadfence_system();
}

__global__ void signal(volatile int* flag, int value) {
  __threadfence_system();
  *flag = value;
}

__global__ void add(int* address, int value) { *address += value; }
__global__ void copy(int* to, const int* from) { *to = *from; }
__global__ void nothing() {}

__global__ void fault_all(CudaFault* fault, CudaFault::Raise raise, std::int64_t got, std::int64_t threads) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < threads) report_fault(fault, raise, got, 2 * got, 3 * got, 4 * got);
}

void raise_fault(const std::int64_t* values) {
  fail({.code = ExitCode::kFormat,
        .subject = "label of row 1",
        .expected = "at most 7",
        .got = std::to_string(values[0]) + " " + std::to_string(values[1]) + " " + std::to_string(values[2]) + " " +
               std::to_string(values[3])});
}

void CUDART_CB run_task(void* task) { (*static_cast<std::function<void()>*>(task))(); }

}  // namespace

void load_kernels() {
  cudaFuncAttributes attributes;
  for (const void* kernel : {reinterpret_cast<const void*>(spin), reinterpret_cast<const void*>(signal),
                             reinterpret_cast<const void*>(add), reinterpret_cast<const void*>(copy),
                             reinterpret_cast<const void*>(nothing), reinterpret_cast<const void*>(fault_all)}) {
    MEGALITH_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
  }
}

void enqueue_on_host(CudaStream& stream, std::function<void()> task) {
  static std::mutex mutex;
  static std::deque<std::function<void()>> tasks;
  const std::lock_guard lock(mutex);
  tasks.push_back(std::move(task));
  MEGALITH_CUDA_CHECK(cudaLaunchHostFunc(stream.handle(), run_task, &tasks.back()));
}

void enqueue_spin(CudaStream& stream, const int* flag, int value) {
  spin<<<1, 1, 0, stream.handle()>>>(flag, value, 500);
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

void enqueue_hold(CudaStream& stream, const int* flag, int value, int multiprocessors) {
  const int shared = stream.dynamic_shared_memory_of_block();
  cuda::allow_shared_memory<spin>(shared);
  // Polls host memory rarely, since polling would delay the host's launches.
  spin<<<multiprocessors, 1, shared, stream.handle()>>>(flag, value, 50'000);
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

void enqueue_signal(CudaStream& stream, int* flag, int value) {
  signal<<<1, 1, 0, stream.handle()>>>(flag, value);
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

void enqueue_add(CudaStream& stream, int* address, int value) {
  add<<<1, 1, 0, stream.handle()>>>(address, value);
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

void enqueue_copy(CudaStream& stream, int* to, const int* from) {
  copy<<<1, 1, 0, stream.handle()>>>(to, from);
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

void enqueue_nothing(CudaStream& stream) {
  nothing<<<1, 1, 0, stream.handle()>>>();
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

void enqueue_fault(CudaStream& stream, std::int64_t got, std::int64_t threads) {
  fault_all<<<static_cast<unsigned>((threads + 127) / 128), 128, 0, stream.handle()>>>(stream.fault(), raise_fault, got,
                                                                                       threads);
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

void enqueue_bad_launch(CudaStream& stream) {
  nothing<<<1, 2000, 0, stream.handle()>>>();
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

void allocate_and_free() {
  void* address = nullptr;
  MEGALITH_CUDA_CHECK(cudaMalloc(&address, 1 << 20));
  MEGALITH_CUDA_CHECK(cudaFree(address));
}

}  // namespace megalith::test
