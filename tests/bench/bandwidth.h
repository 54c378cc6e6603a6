// Measures a memory-bound op against a plain copy loop of the same run. The two alternate, so that other load affects
// both equally, and the medians are compared. Arrays are far larger than the L2 cache.
#pragma once

#include <benchmark/benchmark.h>
#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <functional>
#include <random>
#include <vector>

#include "core/memory/memory_pool.h"
#include "core/ops/op.h"
#include "core/tensor/bf16.h"

namespace megalith::bench {

inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Processor time of the calling thread, in seconds.
inline double thread_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Vector loads and stores in a loop; the barrier keeps the compiler from making it a memcpy with streaming stores.
inline void copy_loop(float* to, const float* from, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += 8) {
    _mm256_storeu_ps(to + i, _mm256_loadu_ps(from + i));
    asm volatile("" ::: "memory");
  }
}

class Bandwidth {
 public:
  static constexpr std::int64_t kCopyElements = 8 << 20;  // 32 MiB in each direction

  Bandwidth() : pool_(DeviceType::kCpu), stream_(DeviceType::kCpu, "bench") {
    from_ = tensor({kCopyElements}, DType::kFp32).as<float>();
    to_ = tensor({kCopyElements}, DType::kFp32).as<float>();
  }

  Stream& stream() { return stream_; }

  // Uniform numbers in [-2, 2).
  Tensor tensor(const Shape& shape, DType type) {
    Tensor result(nullptr, type, shape);
    result.data = pool_.allocate(std::max<std::size_t>(result.bytes(), 1), MemoryCategory::kOther, "bench");
    std::minstd_rand random(1);
    for (std::int64_t i = 0; i < result.numel(); ++i) {
      const float value = static_cast<float>(random() % 65536) / 16384.0f - 2;
      if (type == DType::kFp32) result.as<float>()[i] = value;
      if (type == DType::kBf16) result.as<bf16>()[i] = to_bf16(value);
      if (type == DType::kFp64) result.as<double>()[i] = static_cast<double>(value);
      if (type == DType::kInt32) result.as<std::int32_t>()[i] = static_cast<std::int32_t>(random() % 256);
    }
    return result;
  }

  // Like makers of ops' cases (tests/support/op_cases.h).
  Tensor normal(const Shape& shape, DType type, float = 1, bool positive = false) {
    const Tensor x = tensor(shape, type);
    if (positive) std::fill_n(x.as<float>(), x.numel(), 1.0f);
    return x;
  }
  Tensor output(const Shape& shape, DType type) { return tensor(shape, type); }
  Tensor integers(const std::vector<std::int32_t>& values) {
    const Tensor x = tensor({static_cast<std::int64_t>(values.size())}, DType::kInt32);
    std::ranges::copy(values, x.as<std::int32_t>());
    return x;
  }
  template <class T>
  const T* structure(const T& value) {
    const Tensor x = tensor({static_cast<std::int64_t>(sizeof(T))}, DType::kUint8);
    std::memcpy(x.data, &value, sizeof(T));
    return x.as<const T>();
  }

  // Rate from the bytes that the op declares to read and write. Work in `prepare` is not timed.
  template <class Op>
  void measure(benchmark::State& state, const Op& op, const std::function<void()>& prepare = {}) {
    Access accesses(Op::kName);
    access(op, accesses);
    std::vector<double> op_seconds, copy_seconds;
    launch(stream_, op);  // touches every page
    stream_.synchronize();
    for (auto _ : state) {
      if (prepare) prepare();
      double start = 0, middle = 0, end = 0;
      enqueue([&start] { start = thread_seconds(); });
      launch(stream_, op);
      enqueue([&middle] { middle = thread_seconds(); });
      enqueue([this] { copy_loop(to_, from_, kCopyElements); });
      enqueue([&end] { end = thread_seconds(); });
      stream_.synchronize();
      op_seconds.push_back(middle - start);
      copy_seconds.push_back(end - middle);
      state.SetIterationTime(op_seconds.back());
    }
    const double speed = static_cast<double>(accesses.moved_bytes()) / median(op_seconds);
    const double copy_speed = 2.0 * sizeof(float) * kCopyElements / median(copy_seconds);
    state.counters["GB/s"] = speed * 1e-9;
    state.counters["copy_GB/s"] = copy_speed * 1e-9;
    state.counters["percent_of_copy"] = 100 * speed / copy_speed;
  }

 private:
  void enqueue(CpuStream::Task task) { stream_.cpu()->enqueue(std::move(task)); }

  MemoryPool pool_;
  Stream stream_;
  float* from_;
  float* to_;
};

}  // namespace megalith::bench
