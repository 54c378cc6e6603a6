#include "core/memory/memory_pool.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <vector>

#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "core/base/memory_limit.h"
#include "core/device/capture_guard.h"
#include "core/device/cuda_memory.h"
#include "core/memory/buffer_bytes.h"

namespace megalith {

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::size_t round_up(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }

std::string readable(std::size_t bytes) {
  if (bytes >= (std::size_t{1} << 30)) return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30));
  if (bytes >= (std::size_t{1} << 20)) return fmt::format("{:.2f} MiB", static_cast<double>(bytes) / (1 << 20));
  return fmt::format("{} B", bytes);
}

}  // namespace

std::string_view name_of(MemoryCategory category) {
  static constexpr std::array<std::string_view, kNumMemoryCategories> kNames = {
      "parameters", "main parameters", "gradients", "optimizer", "activations", "workspace", "communication", "other"};
  return kNames[static_cast<std::size_t>(category)];
}

MemoryPool::MemoryPool(DeviceType device, std::size_t limit_bytes, Place place)
    : device_(device), limit_(limit_bytes), place_(place) {
  require_built(device_);
}

MemoryPool::~MemoryPool() {
  free_cached();
  for (const auto& [address, block] : used_) free_to_system(address);
}

void MemoryPool::free_to_system(void* address) {
  if (device_ == DeviceType::kCpu) std::free(address);
  if (device_ == DeviceType::kCuda) place_ == Place::kHost ? cuda_free_host(address) : cuda_free(address);
}

void* MemoryPool::allocate_from_system(std::size_t bytes) {
  if (device_ == DeviceType::kPlan) {
    if (bytes > kMaxBufferBytes - next_plan_address_) return nullptr;
    void* address = reinterpret_cast<void*>(next_plan_address_);
    next_plan_address_ += round_up(bytes, kHugePage);
    return address;
  }
  if (fault_allocation("memory.pool")) return nullptr;
  if (limit_ != 0 && (bytes > limit_ || reserved_ > limit_ - bytes)) return nullptr;
  if (device_ == DeviceType::kCuda) return place_ == Place::kHost ? cuda_allocate_host(bytes) : cuda_allocate(bytes);
  void* address = nullptr;
  if (posix_memalign(&address, bytes >= kHugePage ? kHugePage : kBufferAlignment, bytes) != 0) return nullptr;
  if (bytes >= kHugePage) madvise(address, bytes, MADV_HUGEPAGE);  // fewer TLB misses; only a hint
  return address;
}

void MemoryPool::free_cached() {
  for (const auto& [size, block] : free_) {
    free_to_system(block);
    reserved_ -= size;
  }
  free_.clear();
}

void* MemoryPool::allocate(std::size_t bytes, MemoryCategory category, std::string_view owner) {
  if (bytes > kMaxBufferBytes) fail_out_of_memory(bytes, owner);
  const std::size_t wanted = padded_bytes(bytes);
  void* address = nullptr;
  std::size_t reserved = wanted;
  // A cached block may be up to an eighth larger than requested.
  const auto cached = free_.lower_bound(wanted);
  if (cached != free_.end() && cached->first <= wanted + wanted / 8) {
    reserved = cached->first;
    address = cached->second;
    free_.erase(cached);
  } else {
    if (captures_ != nullptr) {
      captures_->refuse(fmt::format("allocation of {} for {}", readable(bytes), owner),
                        "allocate it before the capture");
    }
    address = allocate_from_system(wanted);
    if (address == nullptr && !free_.empty()) {
      free_cached();
      address = allocate_from_system(wanted);
    }
    if (address == nullptr) fail_out_of_memory(wanted, owner);
    reserved_ += wanted;
    ++system_allocations_;
  }
  used_[address] = {.bytes = reserved, .requested = wanted, .category = category, .owner = std::string(owner)};
  allocated_ += wanted;
  peak_allocated_ = std::max(peak_allocated_, allocated_);
  by_category_[static_cast<std::size_t>(category)] += wanted;
  return address;
}

void MemoryPool::free(void* address) {
  const auto found = used_.find(address);
  require(found != used_.end(), "MemoryPool::free of an address that is not allocated");
  const Block& block = found->second;
  allocated_ -= block.requested;
  by_category_[static_cast<std::size_t>(block.category)] -= block.requested;
  if (device_ == DeviceType::kPlan) {
    reserved_ -= block.bytes;  // the address is not reused
  } else {
    free_.emplace(block.bytes, address);
  }
  used_.erase(found);
}

void MemoryPool::fail_out_of_memory(std::size_t bytes, std::string_view owner) const {
  const bool is_host = place_ == Place::kHost;
  std::map<std::string, std::size_t> owners;
  for (const auto& [address, block] : used_)
    owners[fmt::format("{} ({})", block.owner, name_of(block.category))] += block.requested;
  std::vector<std::pair<std::size_t, std::string>> largest;
  largest.reserve(owners.size());
  for (const auto& [name, size] : owners) largest.emplace_back(size, name);
  std::sort(largest.rbegin(), largest.rend());
  largest.resize(std::min<std::size_t>(largest.size(), 10));
  std::string list;
  for (const auto& [size, name] : largest)
    if (size > 0) list += fmt::format("{}{} {}", list.empty() ? "" : ", ", name, readable(size));
  std::optional<MemoryLimit> limit;  // the process's; none for a GPU's memory or a pool's own limit
  if (limit_ == 0 && (device_ == DeviceType::kCpu || is_host))
    limit = met_limit(bytes, device_ == DeviceType::kCuda ? MemoryKind::kLocked : MemoryKind::kPageable);
  const std::string raise = limit ? fmt::format("{}; or ", LimitText(*limit).view()) : "";
  fail({.code = ExitCode::kOutOfMemory,
        .subject = fmt::format("out of memory: {} for {} on the {}{} device, {} already reserved{}", readable(bytes),
                               owner, is_host ? "host of the " : "", name_of(device_), readable(reserved_),
                               limit_ ? " of a limit of " + readable(limit_) : ""),
        .got = "largest owners: " + (list.empty() ? std::string("none") : list),
        .remedy =
            raise +
            (is_host ? fmt::format("offload less (--offload-modules, --activation-offload-fraction){}start fewer "
                                   "processes on this node",
                                   limit ? " or " : ", raise the limit of locked memory (ulimit -l) or ")
                     : "in training lower --micro-batch-size, add --recompute-granularity full, or use more ranks with "
                       "--data-parallel-sharding-strategy optim_grads_params or --tensor-model-parallel-size"),
        .show_place = false});
}

}  // namespace megalith
