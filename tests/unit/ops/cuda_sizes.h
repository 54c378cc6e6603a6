// CUDA kernels at the sizes of models, where the fp64 references would be too slow. Each op runs on the CPU and the GPU
// with the same inputs: on the GPU twice, and a third time under capture and replay.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/device/copy.h"
#include "core/device/cuda_device.h"
#include "core/device/graph.h"
#include "core/memory/memory_pool.h"
#include "core/tensor/bf16.h"
#include "tests/support/op_test.h"

namespace megalith::test {

using Bytes = std::vector<std::byte>;

// The tensors of one op on one device, made in the same order with the same contents on every device.
class Side {
 public:
  explicit Side(DeviceType device) : pool_(device), stream_(device, "sizes") {}

  Tensor normal(const Shape& shape, DType dtype, float deviation = 1, bool positive = false) {
    std::mt19937 random(static_cast<unsigned>(tensors_.size()) + 1);
    std::normal_distribution<float> distribution(0, deviation);
    std::vector<float> values(1 << 16);  // repeated with a shift that is no divisor of any row
    for (float& v : values) v = positive ? std::abs(distribution(random)) : distribution(random);
    Bytes bytes(static_cast<std::size_t>(shape.numel()) * size_of(dtype));
    for (std::size_t i = 0; i < static_cast<std::size_t>(shape.numel()); ++i) {
      const float value = values[(i + i / 65521) % values.size()];
      const bf16 narrow = to_bf16(value);
      if (dtype == DType::kFp32) std::memcpy(&bytes[4 * i], &value, 4);
      if (dtype == DType::kBf16) std::memcpy(&bytes[2 * i], &narrow, 2);
    }
    return add(shape, dtype, bytes);
  }
  Tensor output(const Shape& shape, DType dtype) {
    return add(shape, dtype, Bytes(static_cast<std::size_t>(shape.numel()) * size_of(dtype), std::byte{0xFF}));
  }
  Tensor integers(const std::vector<std::int32_t>& values) {
    Bytes bytes(values.size() * 4);
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return add({static_cast<std::int64_t>(values.size())}, DType::kInt32, bytes);
  }
  template <class T>
  T* structure(const T& value) {
    Bytes bytes(sizeof(T));
    std::memcpy(bytes.data(), &value, sizeof(T));
    return add({static_cast<std::int64_t>(sizeof(T))}, DType::kUint8, bytes).template as<T>();
  }

  template <class Op>
  Op ready(const Op& op) {  // with a workspace, whose content is not compared
    if constexpr (HasWorkspace<Op>) {
      return with_workspace(op, stream_.device(), [this](std::int64_t bytes) {
        void* const memory = pool_.allocate(static_cast<std::size_t>(bytes), MemoryCategory::kOther, "test");
        return Tensor(memory, DType::kUint8, {bytes});
      });
    } else {
      return op;
    }
  }

  void reset() {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      copy_from_host(stream_, tensors_[i].data, initial_[i].data(), initial_[i].size());
    }
    stream_.synchronize();
  }
  std::vector<Bytes> contents() {
    std::vector<Bytes> result;
    for (const Tensor& t : tensors_) {
      result.emplace_back(t.bytes());
      copy_to_host(stream_, result.back().data(), t.data, t.bytes());
    }
    stream_.synchronize();
    return result;
  }
  Stream& stream() { return stream_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  const std::vector<Bytes>& initial() const { return initial_; }

 private:
  Tensor add(const Shape& shape, DType dtype, const Bytes& bytes) {
    Tensor tensor(pool_.allocate(std::max<std::size_t>(bytes.size(), 1), MemoryCategory::kOther, "test"), dtype, shape);
    tensors_.push_back(tensor);
    initial_.push_back(bytes);
    return tensor;
  }

  MemoryPool pool_;
  Stream stream_;
  std::vector<Tensor> tensors_;
  std::vector<Bytes> initial_;
};

inline double element(const Bytes& bytes, DType dtype, std::size_t i) {
  float wide = 0;
  bf16 narrow;
  double twice = 0;
  std::int32_t integer = 0;
  switch (dtype) {
    case DType::kFp32: std::memcpy(&wide, &bytes[4 * i], 4); return wide;
    case DType::kBf16: std::memcpy(&narrow, &bytes[2 * i], 2); return to_float(narrow);
    case DType::kFp64: std::memcpy(&twice, &bytes[8 * i], 8); return twice;
    case DType::kInt32: std::memcpy(&integer, &bytes[4 * i], 4); return integer;
    default: return std::to_integer<int>(bytes[i]);
  }
}

// Allowed difference of two backends' results, in addition to parts relative to a result and to a typical one.
struct Tolerance {
  bool exact = false;  // the same bits
  double absolute = 0;
};
inline constexpr Tolerance kExact{.exact = true};

// Tolerance for two fp32 sums of `depth` products of unit deviation. The partial sum of i products has deviation
// sqrt(i). Its addition errs by at most a unit in its last place (tensor cores truncate), 2u sqrt(i) with u = 2^-24. A
// side's depth additions then err by sqrt(sum of (2u)^2 i) = sqrt(2) u depth, the difference of two sides by 2u depth;
// six such deviations hold for a billion results. (Truncation has a sign, but happens once for 16 products. Its sum is
// at most 2u sqrt(i), 2u (2/3) depth^1.5 / 16 for a deviation: less up to a depth of 20,000.)
inline Tolerance sums_of(std::int64_t depth) {
  return {.absolute = 6 * 2 * unit_roundoff(DType::kFp32) * static_cast<double>(depth)};
}

class CudaSizes : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (const std::string why = cuda_unavailable(); !why.empty()) GTEST_SKIP() << why;
  }
  DType dtype() const { return GetParam(); }

  // make(Side&) returns the op.
  template <class Make>
  void compare(const std::string& what, const Make& make, const Tolerance& tolerance = {}) {
    SCOPED_TRACE(what);
    Side cpu(DeviceType::kCpu), gpu(DeviceType::kCuda);
    const auto cpu_op = cpu.ready(make(cpu));
    const auto gpu_op = make(gpu);
    cpu.reset();
    launch(cpu.stream(), cpu_op);
    const std::vector<Bytes> want = cpu.contents(), got = results(gpu, gpu_op);
    for (std::size_t t = 0; t < want.size(); ++t) {
      // Parameters, which no op writes, may differ in their padding.
      const bool parameters = cpu.tensors()[t].dtype == DType::kUint8;
      if (tolerance.exact || parameters) {
        EXPECT_TRUE(got[t] == (parameters ? gpu.initial()[t] : want[t])) << "tensor " << t << " differs in bits";
      } else {
        expect_close(got[t], want[t], cpu.tensors()[t], t, tolerance.absolute);
      }
    }
  }

  // Result of a run on the GPU; expects a second run and a replay to equal it.
  template <class Op>
  static std::vector<Bytes> results(Side& gpu, const Op& given) {
    const Op op = gpu.ready(given);
    gpu.reset();
    launch(gpu.stream(), op);
    const std::vector<Bytes> got = gpu.contents();
    gpu.reset();
    launch(gpu.stream(), op);
    EXPECT_EQ(gpu.contents(), got) << "a second run differs";
    gpu.reset();
    Graph graph("sizes");
    graph.begin_capture(gpu.stream());
    launch(gpu.stream(), op);
    graph.end_capture();
    graph.replay(gpu.stream());
    EXPECT_EQ(gpu.contents(), got) << "a replay differs";
    return got;
  }

  void expect_close(const Bytes& got, const Bytes& want, const Tensor& tensor, std::size_t number, double absolute) {
    const auto count = static_cast<std::size_t>(tensor.numel());
    double squares = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const double w = element(want, tensor.dtype, i);
      if (std::isfinite(w)) squares += w * w;
    }
    const double typical = std::sqrt(squares / static_cast<double>(std::max<std::size_t>(count, 1)));
    const double relative = tensor.dtype == DType::kBf16 ? 0x1p-7 : tensor.dtype == DType::kFp32 ? 1e-4 : 1e-12;
    std::size_t wrong = 0, first = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const double g = element(got, tensor.dtype, i), w = element(want, tensor.dtype, i);
      if (std::isnan(g) && std::isnan(w)) continue;
      const double allowed = tensor.dtype == DType::kInt32 ? 0 : absolute + relative * (std::abs(w) + 0.1 * typical);
      if (std::abs(g - w) <= allowed) continue;
      if (wrong++ == 0) first = i;
    }
    EXPECT_EQ(wrong, 0u) << "tensor " << number << " " << to_string(tensor.shape) << ": the first at " << first
                         << ", got " << element(got, tensor.dtype, first) << ", want "
                         << element(want, tensor.dtype, first);
  }
};

}  // namespace megalith::test
