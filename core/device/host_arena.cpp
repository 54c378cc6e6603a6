#include "core/device/host_arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "core/base/error.h"
#include "core/device/cuda_memory.h"

namespace megalith {

namespace {
constexpr std::size_t kAlignment = 256;
constexpr std::size_t kLargest = std::size_t{1} << 62;
constexpr std::uintptr_t kPlanAddress = std::uintptr_t{1} << 45;
std::size_t round_up(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
}  // namespace

HostArena::HostArena(DeviceType device, std::size_t bytes, std::string_view owner)
    : device_(device), owner_(owner), bytes_(bytes > kLargest ? bytes : std::max(round_up(bytes), kAlignment)) {
  void* block = nullptr;
  switch (device_) {
    case DeviceType::kPlan: block = reinterpret_cast<void*>(kPlanAddress); break;
    case DeviceType::kCpu:
      if (bytes_ <= kLargest && posix_memalign(&block, kAlignment, bytes_) != 0) block = nullptr;
      break;
    case DeviceType::kCuda:
      require_built(device_);
      block = bytes_ <= kLargest ? cuda_allocate_host(bytes_) : nullptr;
      break;
  }
  if (block == nullptr) {
    fail(
        {.code = ExitCode::kOutOfMemory,
         .subject = fmt::format("out of host memory: {} bytes for {}{}", bytes_, owner_, pinned() ? ", pinned" : ""),
         .remedy = pinned() ? "raise the limit of locked memory (ulimit -l) or start fewer processes on this node" : "",
         .show_place = false});
  }
  block_ = static_cast<std::byte*>(block);
}

HostArena::~HostArena() {
  if (device_ == DeviceType::kCpu) std::free(block_);
  if (device_ == DeviceType::kCuda) cuda_free_host(block_);
}

void* HostArena::allocate(std::size_t bytes) {
  const std::size_t wanted = bytes > kLargest ? bytes : std::max(round_up(bytes), kAlignment);
  if (wanted > bytes_ - used_) {
    fail({.code = ExitCode::kOutOfMemory,
          .subject = fmt::format("host arena of {}", owner_),
          .expected = fmt::format("at most the {} bytes left of {}", bytes_ - used_, bytes_),
          .got = fmt::format("{}", bytes)});
  }
  void* address = block_ + used_;
  used_ += wanted;
  return address;
}

}  // namespace megalith
