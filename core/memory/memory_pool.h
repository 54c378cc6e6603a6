// A caching allocator for memory outside the step (parameters, optimizer state, the arena's block, start-up buffers)
// and for tests. Freed blocks go to a free list by size; the pool asks the system only if no block fits. Statistics are
// kept per owner category.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "core/device/device.h"

namespace megalith {

class CaptureGuard;

enum class MemoryCategory : std::uint8_t {
  kParameters,
  kMainParameters,
  kGradients,
  kOptimizer,
  kActivations,
  kWorkspace,
  kCommunication,
  kOther,
};
inline constexpr int kNumMemoryCategories = 8;
std::string_view name_of(MemoryCategory category);  // "main parameters"

using CategoryBytes = std::array<std::size_t, kNumMemoryCategories>;

class MemoryPool {
 public:
  // kHost: host memory that the device's copies access directly; pinned for a GPU.
  enum class Place : std::uint8_t { kDevice, kHost };
  // limit_bytes 0: only the machine's limit. A plan has no limit. CUDA: memory of the process's GPU, by plain
  // cudaMalloc. Freeing waits for the GPU, so that the pool frees only at its end, on request, or when memory is short.
  explicit MemoryPool(DeviceType device, std::size_t limit_bytes = 0, Place place = Place::kDevice);
  ~MemoryPool();  // returns everything to the system
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // Returns 256-byte aligned memory with undefined contents; a valid address also for zero bytes. If the system or the
  // limit rejects it, fails with exit code 6 and lists the ten largest owners.
  void* allocate(std::size_t bytes, MemoryCategory category, std::string_view owner);
  void free(void* address);
  // Returns cached blocks to the system. On a GPU it waits for all work.
  void free_cached();

  // While a stream of the rank captures, only cached blocks are handed out; asking the system is an error.
  void set_capture_guard(const CaptureGuard* captures) { captures_ = captures; }
  const CaptureGuard* capture_guard() const { return captures_; }

  std::size_t allocated_bytes() const { return allocated_; }  // bytes in use
  std::size_t reserved_bytes() const { return reserved_; }    // bytes taken from the system, including cached blocks
  std::size_t peak_allocated_bytes() const { return peak_allocated_; }
  const CategoryBytes& allocated_by_category() const { return by_category_; }
  std::int64_t system_allocations() const { return system_allocations_; }
  DeviceType device() const { return device_; }

 private:
  struct Block {
    std::size_t bytes = 0;      // reserved bytes
    std::size_t requested = 0;  // bytes rounded up to 256
    MemoryCategory category = MemoryCategory::kOther;
    std::string owner;
  };

  void* allocate_from_system(std::size_t bytes);
  void free_to_system(void* address);
  [[noreturn]] void fail_out_of_memory(std::size_t bytes, std::string_view owner) const;

  DeviceType device_;
  std::size_t limit_;
  Place place_;
  const CaptureGuard* captures_ = nullptr;
  std::size_t allocated_ = 0;
  std::size_t reserved_ = 0;
  std::size_t peak_allocated_ = 0;
  std::int64_t system_allocations_ = 0;
  CategoryBytes by_category_{};
  std::map<void*, Block> used_;
  std::multimap<std::size_t, void*> free_;
  std::uintptr_t next_plan_address_ = std::uintptr_t{1} << 44;  // plan: addresses that are never reused
};

}  // namespace megalith
