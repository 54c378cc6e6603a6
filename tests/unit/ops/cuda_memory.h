// Device memory for tests that drive a CudaStream themselves.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "core/device/cuda/check.h"
#include "core/device/cuda_memory.h"
#include "core/device/cuda_stream.h"
#include "core/tensor/bf16.h"
#include "core/tensor/tensor.h"

namespace megalith::test {

class CudaBlock {
 public:
  CudaBlock(CudaStream& stream, const Shape& shape, DType dtype)
      : stream_(stream), tensor_(nullptr, dtype, shape), bytes_(tensor_.bytes() > 0 ? tensor_.bytes() : 1) {
    tensor_.data = cuda_allocate(bytes_);
    require(tensor_.data != nullptr, "a test found too little GPU memory");
    poison();
  }
  ~CudaBlock() { cuda_free(tensor_.data); }
  CudaBlock(const CudaBlock&) = delete;
  CudaBlock& operator=(const CudaBlock&) = delete;

  const Tensor& tensor() const { return tensor_; }
  void poison() { stream_.fill(tensor_.data, 0xFF, bytes_); }  // NaN in every float type

  // Rounded to the dtype, fp32 or bf16.
  void upload(const std::vector<double>& values) {
    std::vector<std::byte> bytes(tensor_.bytes());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto x = static_cast<float>(values[i]);
      const bf16 rounded = to_bf16(x);
      if (tensor_.dtype == DType::kFp32) std::memcpy(&bytes[4 * i], &x, 4);
      if (tensor_.dtype == DType::kBf16) std::memcpy(&bytes[2 * i], &rounded, 2);
    }
    stream_.copy(tensor_.data, bytes.data(), bytes.size());
    synchronize();
  }
  std::vector<double> values() {
    const std::vector<std::byte> raw = bytes();
    std::vector<double> result(static_cast<std::size_t>(tensor_.numel()));
    for (std::size_t i = 0; i < result.size(); ++i) {
      float x = 0;
      bf16 narrow;
      if (tensor_.dtype == DType::kFp32) std::memcpy(&x, &raw[4 * i], 4);
      if (tensor_.dtype == DType::kBf16) {
        std::memcpy(&narrow, &raw[2 * i], 2);
        x = to_float(narrow);
      }
      result[i] = static_cast<double>(x);
    }
    return result;
  }
  std::vector<std::byte> bytes() {
    std::vector<std::byte> result(tensor_.bytes());
    stream_.copy(result.data(), tensor_.data, result.size());
    synchronize();
    return result;
  }

 private:
  void synchronize() { MEGALITH_CUDA_CHECK(cudaStreamSynchronize(stream_.handle())); }

  CudaStream& stream_;
  Tensor tensor_;
  std::size_t bytes_;
};

inline std::vector<double> normal_values(std::int64_t count, std::uint64_t seed, double mean = 0) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> distribution(mean, 1);
  std::vector<double> result(static_cast<std::size_t>(count));
  for (double& x : result) x = distribution(random);
  return result;
}

// Captures the work of `enqueue` on the stream and replays it `times` times.
template <class Enqueue>
void capture_and_replay(CudaStream& stream, int times, Enqueue&& enqueue) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  MEGALITH_CUDA_CHECK(cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeGlobal));
  enqueue();
  MEGALITH_CUDA_CHECK(cudaStreamEndCapture(stream.handle(), &graph));
  MEGALITH_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  for (int i = 0; i < times; ++i) MEGALITH_CUDA_CHECK(cudaGraphLaunch(executable, stream.handle()));
  MEGALITH_CUDA_CHECK(cudaStreamSynchronize(stream.handle()));
  MEGALITH_CUDA_CHECK(cudaGraphExecDestroy(executable));
  MEGALITH_CUDA_CHECK(cudaGraphDestroy(graph));
}

}  // namespace megalith::test
