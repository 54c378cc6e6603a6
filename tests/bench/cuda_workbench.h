// Shared code of the CUDA benches: device memory cut from one block, and times of alternating calls.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/device/cuda/check.h"
#include "core/device/cuda_device.h"
#include "core/device/cuda_memory.h"
#include "core/ops/elementwise/elementwise.h"
#include "core/ops/elementwise/fill_normal.h"
#include "core/ops/gemm/gemm_algorithms_cuda.h"
#include "core/ops/op.h"

namespace megalith::bench {

inline constexpr std::size_t kMemoryBytes = std::size_t{40} << 30;
inline constexpr int kWarmUps = 3;
inline constexpr int kRuns = 11;
inline constexpr std::size_t kFlushBytes = std::size_t{256} << 20;  // several times the L2 cache

// One block of device memory, cut from the front. kFlushBytes of it are for flushing the L2 cache; the tensors of a
// case are invalid after the next reset().
class Workbench {
 public:
  Workbench() : block_(static_cast<std::byte*>(cuda_allocate(kMemoryBytes))) {
    require(block_ != nullptr, "the bench needs 40 GiB of GPU memory");
    reset();
  }
  ~Workbench() { cuda_free(block_); }

  CudaStream& stream() { return stream_; }
  void reset() { used_ = kFlushBytes; }
  Tensor tensor(const Shape& shape, DType dtype, bool random = true) {
    const Tensor x(block_ + used_, dtype, shape);
    used_ += (x.bytes() + 255) / 256 * 256;
    require(used_ <= kMemoryBytes, "a case of the bench is too large");
    if (random) run(stream_, FillNormal{.x = x.view({1, x.numel()}), .numbers = {.seed = used_}, .pitch = x.numel()});
    return x;
  }
  // Like makers of ops' cases (tests/support/op_cases.h).
  Tensor normal(const Shape& shape, DType dtype, float = 1, bool positive = false) {
    const Tensor x = tensor(shape, dtype, !positive);
    if (positive) run(stream_, Fill{.x = x, .value = 1e-3});
    return x;
  }
  Tensor output(const Shape& shape, DType dtype) { return tensor(shape, dtype, false); }
  Tensor integers(const std::vector<std::int32_t>& values) {
    const Tensor x = output({static_cast<std::int64_t>(values.size())}, DType::kInt32);
    upload(x, values.data());
    return x;
  }
  template <class T>
  T* structure(const T& value) {
    const Tensor x = output({static_cast<std::int64_t>(sizeof(T))}, DType::kUint8);
    upload(x, &value);
    return x.as<T>();
  }
  template <class Op>
  Op ready(const Op& op) {  // with its workspace
    if constexpr (HasWorkspace<Op>) {
      return with_workspace(op, DeviceType::kCuda,
                            [this](std::int64_t bytes) { return tensor({bytes}, DType::kUint8, false); });
    } else {
      return op;
    }
  }
  GemmScratch rest() { return {.memory = block_, .bytes = kMemoryBytes}; }
  void synchronize() { MEGALITH_CUDA_CHECK(cudaStreamSynchronize(stream_.handle())); }

  using Call = std::function<void()>;
  // Median seconds of each call. Calls alternate, so that clocks and temperature affect them equally. L2 is flushed
  // ahead of each, and the host runs far ahead of the device.
  std::vector<double> seconds(const std::vector<Call>& calls) {
    const std::size_t count = calls.size() * kRuns;
    while (events_.size() < 2 * count) MEGALITH_CUDA_CHECK(cudaEventCreate(&events_.emplace_back()));
    for (int run = -kWarmUps; run < kRuns; ++run) {
      for (std::size_t i = 0; i < calls.size(); ++i) {
        const std::size_t at = 2 * (static_cast<std::size_t>(std::max(run, 0)) * calls.size() + i);
        stream_.fill(block_, static_cast<std::uint8_t>(run), kFlushBytes);
        MEGALITH_CUDA_CHECK(cudaEventRecord(events_[at], stream_.handle()));
        calls[i]();
        MEGALITH_CUDA_CHECK(cudaEventRecord(events_[at + 1], stream_.handle()));
      }
    }
    synchronize();
    std::vector<double> medians;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      std::vector<double> times;
      for (std::size_t run = 0; run < kRuns; ++run) {
        float ms = 0;
        const std::size_t at = 2 * (run * calls.size() + i);
        MEGALITH_CUDA_CHECK(cudaEventElapsedTime(&ms, events_[at], events_[at + 1]));
        times.push_back(1e-3 * static_cast<double>(ms));
      }
      std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
      medians.push_back(times[kRuns / 2]);
    }
    return medians;
  }
  double seconds(const Call& call) { return seconds(std::vector<Call>{call}).front(); }
  // The host's microseconds per call.
  double host_microseconds(const std::function<void()>& enqueue) {
    constexpr int kCalls = 50;
    enqueue();
    synchronize();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) enqueue();
    const std::chrono::duration<double, std::micro> passed = std::chrono::steady_clock::now() - start;
    synchronize();
    return passed.count() / kCalls;
  }

 protected:
  void upload(const Tensor& to, const void* from) {
    stream_.copy(to.data, from, to.bytes());
    synchronize();
  }

  CudaStream stream_;
  std::byte* block_;
  std::size_t used_ = 0;
  std::vector<cudaEvent_t> events_;
};

// The exit status of a bench's main. Without a GPU it says so, and is 0.
template <class Bench>
int bench_main(const char* program, const Bench& bench) try {
  if (const std::string why = cuda_unavailable(); !why.empty()) {
    fmt::print("skipped: {}\n", why);
  } else {
    bench();
  }
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}: {}\n", program, error.what());
  return 1;
}

}  // namespace megalith::bench
