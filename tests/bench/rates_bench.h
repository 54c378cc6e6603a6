// Times ops on one device, for rates.cpp.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "core/device/copy.h"
#include "core/device/graph.h"
#include "core/memory/memory_pool.h"
#include "core/ops/elementwise/elementwise.h"
#include "core/ops/elementwise/fill_normal.h"
#include "core/ops/op.h"

namespace megalith {

using Clock = std::chrono::steady_clock;

inline double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

class Bench {
 public:
  explicit Bench(DeviceType device) : device_(device), pool_(device), stream_(device, "bench") {}

  bool is_cuda() const { return device_ == DeviceType::kCuda; }
  Stream& stream() { return stream_; }
  // The next measurement may reuse the memory; none is freed.
  void reset() {
    for (const auto& [data, bytes] : used_) pool_.free(data);
    used_.clear();
  }
  void* allocate(std::size_t bytes) {
    void* data = pool_.allocate(std::max<std::size_t>(bytes, 1), MemoryCategory::kOther, "bench");
    used_.emplace_back(data, bytes);
    return data;
  }
  // Normal numbers, as weights and activations are: products of zeros would run cooler and faster.
  Tensor tensor(const Shape& shape, DType dtype) {
    Tensor x(nullptr, dtype, shape);
    x.data = allocate(x.bytes());
    if (x.numel() == 0) return x;
    if (dtype == DType::kFp32 || dtype == DType::kBf16) {
      launch(stream_, FillNormal{.x = x.view({1, x.numel()}), .numbers = {.seed = 1}, .pitch = x.numel()});
    } else {
      launch(stream_, Fill{.x = x, .value = 0});
    }
    return x;
  }

  // Like makers of ops' cases (tests/support/op_cases.h).
  Tensor normal(const Shape& shape, DType dtype, float = 1, bool = false) { return tensor(shape, dtype); }
  Tensor output(const Shape& shape, DType dtype) { return tensor(shape, dtype); }
  Tensor integers(const std::vector<std::int32_t>& values) {
    const Tensor x = tensor({static_cast<std::int64_t>(values.size())}, DType::kInt32);
    copy_from_host(stream_, x.data, values.data(), x.bytes());
    stream_.synchronize();
    return x;
  }
  template <class T>
  T* structure(const T& value) {
    auto* const data = static_cast<T*>(allocate(sizeof(T)));
    copy_from_host(stream_, data, &value, sizeof(T));
    stream_.synchronize();
    return data;
  }

  // Seconds of one call, in a captured graph of such calls without host waits: the median of several rows.
  double seconds(const std::function<void()>& call) {
    constexpr double kRow = 0.05;
    constexpr int kMaxCalls = 100, kMaxReplays = 2000;
    const auto timed = [this](const std::function<void()>& work) {
      const auto start = Clock::now();
      work();
      stream_.synchronize();
      return std::max(since(start), 1e-9);
    };
    const auto fitting = [](double each, int most) {
      return static_cast<int>(std::clamp(kRow / each, 1.0, 1.0 * most));
    };
    timed(call);
    const int calls = fitting(timed(call), kMaxCalls);
    Graph graph("bench");
    capture(graph, calls, call);
    const auto replay = [&] { graph.replay(stream_); };
    timed(replay);
    const int replays = fitting(timed(replay), kMaxReplays);
    return median([&] {
      return timed([&] {
               for (int i = 0; i < replays; ++i) replay();
             }) /
             replays / calls;
    });
  }
  void capture(Graph& graph, int calls, const std::function<void()>& call) {
    graph.begin_capture(stream_);
    for (int i = 0; i < calls; ++i) call();
    graph.end_capture();
  }
  static double median(const std::function<double()>& measured) {
    std::vector<double> rows(7);
    std::ranges::generate(rows, measured);
    std::ranges::nth_element(rows, rows.begin() + 3);
    return rows[3];
  }
  template <class Op>
  Op ready(const Op& op) {  // with its workspace
    if constexpr (HasWorkspace<Op>) {
      return with_workspace(op, device_, [this](std::int64_t bytes) { return tensor({bytes}, DType::kUint8); });
    } else {
      return op;
    }
  }
  template <class Op>
  double seconds_of(const Op& given) {
    const Op op = ready(given);
    return seconds([&] { launch(stream_, op); });
  }

 private:
  DeviceType device_;
  MemoryPool pool_;
  std::vector<std::pair<void*, std::size_t>> used_;
  Stream stream_;
};

template <class Op>
double flops_of(const Op& op) {
  Access what(Op::kName);
  access(op, what);
  return what.flops();
}

template <class Op>
double bytes_of(const Op& op) {
  Access what(Op::kName);
  access(op, what);
  return static_cast<double>(what.moved_bytes());
}

}  // namespace megalith
