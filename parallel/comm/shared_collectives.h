// Collectives of groups whose ranks read each other's memory (memory_sharing.h): MemorySharing::share_memory() has
// returned true for memory that holds `in`, at the same place on each rank. Other groups refuse them.
#pragma once

#include <concepts>
#include <string>

#include "core/tensor/tensor.h"

namespace megalith {

class Communicator;

// AllGather by copy engines, to an out that is elsewhere.
struct SharedAllGather {
  static constexpr const char* kName = "all_gather";
  Communicator& group;
  Tensor in;   // [n], shared
  Tensor out;  // [P * n], written, in rank order
  std::string label = {};
};

// ReduceScatter in the order of the ranks and in fp32: each rank copies the others' parts and sums them.
struct SharedReduceScatter {
  static constexpr const char* kName = "reduce_scatter";
  Communicator& group;
  Tensor in;                // [P * n] fp32 | bf16, shared
  Tensor out;               // [n] of in's dtype, or fp32; written; may be in's own part
  Tensor copies;            // [(P - 1) m] of in's dtype, m a multiple of 8: written, m elements of each part at a time
  bool accumulate = false;  // adds to out
  std::string label = {};
};

template <class Op>
concept SharedCollective = std::same_as<Op, SharedAllGather> || std::same_as<Op, SharedReduceScatter>;

}  // namespace megalith
