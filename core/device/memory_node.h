// On which NUMA node memory lies.
#pragma once

#include <cstddef>

namespace megalith {

// Of the first and the last page; both -1 where the kernel does not tell, as it may not of a driver's pages.
struct MemoryNodes {
  int first = -1, last = -1;
};
// Of memory that was written.
MemoryNodes nodes_of(const void* begin, std::size_t bytes);

}  // namespace megalith
