// operator new that fails on request (--fault memory.new:N), linked into a train program of the tests.
#include <cstddef>
#include <cstdlib>
#include <new>

#include "core/base/files/fault.h"

namespace {

void* allocate(std::size_t bytes, std::size_t alignment) noexcept {
  if (megalith::fault_allocation("memory.new")) return nullptr;
  if (alignment <= alignof(std::max_align_t)) return std::malloc(bytes == 0 ? 1 : bytes);
  return std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
}

void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
  void* address = allocate(bytes, alignment);
  if (address == nullptr) throw std::bad_alloc();
  return address;
}

}  // namespace

// The other forms of new and delete of the library call these.
void* operator new(std::size_t bytes) { return allocate_or_throw(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* address) noexcept { std::free(address); }
void operator delete(void* address, std::size_t) noexcept { std::free(address); }
void operator delete(void* address, std::align_val_t) noexcept { std::free(address); }
void operator delete(void* address, std::size_t, std::align_val_t) noexcept { std::free(address); }
