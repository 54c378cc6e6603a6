// Buffers and runs for the collective cases, on any backend.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/device/copy.h"
#include "core/device/cuda_memory.h"
#include "core/device/graph.h"
#include "core/device/stream.h"
#include "core/tensor/bf16.h"
#include "core/tensor/tensor.h"

namespace megalith::test {

// Device of the case, and whether each call is captured and replayed. On CUDA, values are small integers with exact
// sums in every order. On the CPU the order of a sum is visible.
struct CollectiveForm {
  DeviceType device = DeviceType::kCpu;
  bool captured = false;
};

template <class T>
constexpr DType kDTypeOf = DType::kUint8;
template <>
inline constexpr DType kDTypeOf<float> = DType::kFp32;
template <>
inline constexpr DType kDTypeOf<bf16> = DType::kBf16;
template <>
inline constexpr DType kDTypeOf<double> = DType::kFp64;
template <>
inline constexpr DType kDTypeOf<std::int32_t> = DType::kInt32;
template <>
inline constexpr DType kDTypeOf<std::int64_t> = DType::kInt64;

// Element i of a rank's data. Magnitudes from 2^-8 to 2^7 make the order of a floating-point sum visible; on CUDA the
// values are integers from -16 to 15.
template <class T>
T value(const CollectiveForm& form, int rank, std::int64_t i) {
  std::uint64_t h =
      static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15u + static_cast<std::uint64_t>(rank) * 0xD1B54A32D192ED03u;
  h = (h ^ (h >> 31)) * 0xBF58476D1CE4E5B9u;
  h ^= h >> 29;
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(h);
  } else {
    const double x = form.device == DeviceType::kCuda
                         ? static_cast<double>(h >> 59) - 16
                         : std::ldexp(static_cast<double>(static_cast<std::int64_t>(h >> 12)) / 0x1p52 - 0.5,
                                      static_cast<int>(h % 16) - 7);
    if constexpr (std::is_same_v<T, bf16>) {
      return to_bf16(static_cast<float>(x));
    } else {
      return static_cast<T>(x);
    }
  }
}

// Host values and, on CUDA, their device copies, which Rig::run transfers in both directions. Unset bytes are 0xA5.
template <class T>
class Buffer {
 public:
  std::vector<T> values;

  Buffer(const CollectiveForm& form, std::int64_t n) : values(static_cast<std::size_t>(n)) {
    if (n == 0) return;
    std::memset(static_cast<void*>(values.data()), 0xA5, bytes());
    if (form.device != DeviceType::kCuda) return;
    device_ = {cuda_allocate(bytes()), cuda_free};
    require(device_ != nullptr, "out of device memory in a test");
  }
  static Buffer of_rank(const CollectiveForm& form, int rank, std::int64_t n) {
    Buffer result(form, n);
    for (std::int64_t i = 0; i < n; ++i) result.values[static_cast<std::size_t>(i)] = value<T>(form, rank, i);
    return result;
  }

  Tensor tensor() {
    return Tensor(device_ != nullptr ? device_.get() : values.data(), kDTypeOf<T>,
                  {static_cast<std::int64_t>(values.size())});
  }
  void upload(Stream& stream) {
    if (device_ != nullptr) copy_from_host(stream, device_.get(), values.data(), bytes());
  }
  void download(Stream& stream) {
    if (device_ != nullptr) copy_to_host(stream, values.data(), device_.get(), bytes());
  }

 private:
  std::size_t bytes() const { return values.size() * sizeof(T); }

  std::unique_ptr<void, void (*)(void*)> device_{nullptr, [](void*) {}};
};

class Rig {
 public:
  explicit Rig(const CollectiveForm& form) : form_(form), stream_(form.device, "comm") {}

  const CollectiveForm& form() const { return form_; }
  Stream& stream() { return stream_; }
  int runs() const { return form_.captured ? 2 : 1; }  // number of runs of the calls given to run()

  template <class T>
  Buffer<T> empty(std::int64_t n) const {
    return Buffer<T>(form_, n);
  }
  template <class T>
  Buffer<T> of_rank(int rank, std::int64_t n) const {
    return Buffer<T>::of_rank(form_, rank, n);
  }

  // calls() enqueues on stream(); afterwards the buffers' values are the results. A captured form runs the calls only
  // in two replays, each on the values that the buffers have now.
  template <class Calls, class... Buffers>
  void run(Calls calls, Buffers&... buffers) {
    if (!form_.captured) {
      (buffers.upload(stream_), ...);
      calls();
      (buffers.download(stream_), ...);
      stream_.synchronize();
      return;
    }
    const auto before = std::make_tuple(buffers.values...);
    Graph graph("collectives");
    graph.begin_capture(stream_);
    calls();
    graph.end_capture();
    for (int replay = 0; replay < runs(); ++replay) {
      std::apply([&](const auto&... values) { (put_back(buffers, values), ...); }, before);
      graph.replay(stream_);
      (buffers.download(stream_), ...);
      stream_.synchronize();
    }
  }

 private:
  template <class T>
  void put_back(Buffer<T>& buffer, const std::vector<T>& values) {
    if (!values.empty())
      std::memcpy(static_cast<void*>(buffer.values.data()), values.data(), values.size() * sizeof(T));
    buffer.upload(stream_);
  }

  CollectiveForm form_;
  Stream stream_;
};

}  // namespace megalith::test
