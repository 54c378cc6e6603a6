// Interface of groups whose ranks read each other's memory: processes of one host with one GPU each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "parallel/comm/communicator.h"

namespace megalith {

class MemorySharing {
 public:
  virtual ~MemorySharing() = default;
  // Lets peers read [base, base + bytes) directly. Shifts within it, which then use equal offsets, and SharedAllGather
  // require no multiprocessor. SharedReduceScatter requires some only while it adds, and ExchangeRows a few to read
  // rows. Returns false if ranks pass different bytes or `layout` (a digest of offsets), or if a GPU cannot reach
  // another's memory. Shifts then use the path of other calls. Collective, once per group. The memory is freed after
  // unshare_memory, which is collective and requires that none of these calls is pending.
  // Without `layout`, sizes and offsets may differ. Only Sends with a place then access the memory; a copy engine of
  // the sender writes their messages, and no multiprocessor waits for them.
  virtual bool share_memory(void* base, std::size_t bytes, std::optional<std::uint64_t> layout) = 0;
  virtual void unshare_memory() = 0;
};

}  // namespace megalith
