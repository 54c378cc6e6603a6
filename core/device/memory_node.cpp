#include "core/device/memory_node.h"

#include <sys/syscall.h>
#include <unistd.h>

namespace megalith {

namespace {

// Returns the NUMA node of the page at an address (get_mempolicy(2)).
int node_at(const std::byte* address) {
  constexpr unsigned long kNode = 1, kOfAddress = 2;
  int node = -1;
  return syscall(SYS_get_mempolicy, &node, nullptr, 0UL, address, kNode | kOfAddress) == 0 ? node : -1;
}

}  // namespace

MemoryNodes nodes_of(const void* begin, std::size_t bytes) {
  if (bytes == 0) return {};
  const auto* const first = static_cast<const std::byte*>(begin);
  const MemoryNodes nodes{.first = node_at(first), .last = node_at(first + bytes - 1)};
  return nodes.first < 0 || nodes.last < 0 ? MemoryNodes{} : nodes;
}

}  // namespace megalith
