// NUMA nodes of memory.
#pragma once

#include <cstddef>

namespace megalith {

// Nodes of the first and the last page; both -1 if the kernel does not report them, e.g. for a driver's pages.
struct MemoryNodes {
  int first = -1, last = -1;
};
// Returns the nodes of memory that was written.
MemoryNodes nodes_of(const void* begin, std::size_t bytes);

}  // namespace megalith
