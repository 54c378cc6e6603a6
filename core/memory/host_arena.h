// Host memory for copies to and from the device: one block, allocated at the start and handed out in pieces. For CUDA
// it is pinned, so that copies run concurrently with the host and the kernels.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/device/device.h"

namespace megalith {

class HostArena {
 public:
  // Fails with exit code 6 if the host lacks memory. A plan's arena gives addresses that are never touched.
  HostArena(DeviceType device, std::size_t bytes, std::string_view owner);
  ~HostArena();
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  // Returns 256-byte aligned memory with undefined contents. Exceeding the block is an error.
  void* allocate(std::size_t bytes);
  template <class T>
  T* allocate_as(std::size_t count) {
    return static_cast<T*>(allocate(count * sizeof(T)));
  }
  void reset() { used_ = 0; }  // frees everything

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
