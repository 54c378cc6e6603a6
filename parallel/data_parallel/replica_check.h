// Compares what data-parallel ranks hold in copies, by XXH3-128 hashes of the bytes: a flipped bit, a missed update or
// a kernel whose bits vary are found, whatever they do to the loss.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/device/stream.h"
#include "core/tensor/tensor.h"
#include "parallel/comm/communicator.h"

namespace megalith {

struct ReplicatedTensor {
  std::string name;
  Tensor tensor;  // contiguous; the same bytes on every rank of the group
};

struct ReplicaDifference {
  std::string tensor;      // the first that differs
  std::vector<int> ranks;  // which differ from the majority there; all ranks if there is none
  bool majority = false;   // more than half of the ranks agree
  int more_tensors = 0;    // that differ too
  // "weight of X: expected the same bytes on the 4 ranks of group dp, got others on rank 2 (hash ..., others ...)"
  std::string message;
};

// Collective over the group, with the same list on all ranks and no work pending on other streams; blocks the host.
// Every rank gets the same answer. While all agree 16 bytes a rank are exchanged. `world_ranks` are the group's as the
// world counts them, for the answer; empty: the group is the world.
std::optional<ReplicaDifference> compare_replicas(Communicator& group, Stream& stream,
                                                  std::span<const ReplicatedTensor> tensors,
                                                  std::span<const int> world_ranks = {});

}  // namespace megalith
