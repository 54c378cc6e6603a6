#include "core/memory/host_arena.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>
#include <optional>

#include "core/base/error.h"
#include "core/base/memory_limit.h"
#include "core/device/cuda_memory.h"
#include "core/memory/buffer_bytes.h"

namespace megalith {

namespace {
constexpr std::uintptr_t kPlanAddress = std::uintptr_t{1} << 45;
// Sizes too large for any memory stay unchanged.
std::size_t padded(std::size_t bytes) { return bytes > kMaxBufferBytes ? bytes : padded_bytes(bytes); }

void* take(DeviceType device, std::size_t bytes) {
  if (device == DeviceType::kPlan) return reinterpret_cast<void*>(kPlanAddress);
  require_built(device);
  if (bytes > kMaxBufferBytes) return nullptr;
  if (device == DeviceType::kCuda) return cuda_allocate_host(bytes);
  return std::aligned_alloc(kBufferAlignment, bytes);
}
}  // namespace

HostArena::HostArena(DeviceType device, std::size_t bytes, std::string_view owner)
    : device_(device),
      owner_(owner),
      block_(static_cast<std::byte*>(take(device, padded(bytes)))),
      bytes_(padded(bytes)) {
  if (block_ == nullptr) {
    const std::optional<MemoryLimit> limit = met_limit(bytes_, pinned() ? MemoryKind::kLocked : MemoryKind::kPageable);
    std::string remedy;
    if (limit) remedy = LimitText(*limit).view();
    if (!limit && pinned())
      remedy = "raise the limit of locked memory (ulimit -l) or start fewer processes on this node";
    fail({.code = ExitCode::kOutOfMemory,
          .subject = fmt::format("out of host memory: {} bytes for {}{}", bytes_, owner_, pinned() ? ", pinned" : ""),
          .remedy = remedy,
          .show_place = false});
  }
}

HostArena::~HostArena() {
  if (device_ == DeviceType::kCpu) std::free(block_);
  if (device_ == DeviceType::kCuda) cuda_free_host(block_);
}

void* HostArena::allocate(std::size_t bytes) {
  const std::size_t wanted = padded(bytes);
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
