// Host memory for copies to and from the device: one block, taken at the start, given out piece by piece. For CUDA it
// is pinned, so that copies run beside the host and the kernels.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/device/device.h"

namespace megalith {

class HostArena {
 public:
  // Exit code 6 when the host refuses. A plan's arena gives addresses that are never touched.
  HostArena(DeviceType device, std::size_t bytes, std::string_view owner);
  ~HostArena();
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  // 256-byte aligned; contents undefined. More than is left is an error.
  void* allocate(std::size_t bytes);
  template <class T>
  T* allocate_as(std::size_t count) {
    return static_cast<T*>(allocate(count * sizeof(T)));
  }
  void reset() { used_ = 0; }  // everything may be given out again

  std::size_t bytes() const { return bytes_; }
  std::size_t used_bytes() const { return used_; }
  bool pinned() const { return device_ == DeviceType::kCuda; }

 private:
  DeviceType device_;
  std::string owner_;
  std::byte* block_;
  std::size_t bytes_;
  std::size_t used_ = 0;
};

}  // namespace megalith
