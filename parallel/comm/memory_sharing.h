// Groups whose ranks can read each other's memory: those of processes with a GPU each on one host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "parallel/comm/communicator.h"

namespace megalith {

class MemorySharing {
 public:
  virtual ~MemorySharing() = default;
  // Lets the peers read [base, base + bytes) themselves: shifts within it, which are from equal offsets from then on,
  // and SharedAllGather need no multiprocessor of the GPU, SharedReduceScatter some only while it adds, and rows
  // (ExchangeRows) are read by a few. Returns whether it is so: not where ranks pass other bytes or
  // another `layout`, a digest of what lies where, or a GPU does not reach another's memory; shifts then go as all
  // other calls do. Collective, once a group; the memory is freed after unshare_memory, which is collective too and
  // called when none of these is pending.
  virtual bool share_memory(void* base, std::size_t bytes, std::uint64_t layout) = 0;
  virtual void unshare_memory() = 0;
};

}  // namespace megalith
