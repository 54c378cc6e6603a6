// Comparison of data-parallel replicas by XXH3-128 hashes of their bytes. It finds a flipped bit, a missed update, or a
// kernel with varying bits, even without an effect on the loss.
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
  Tensor tensor;  // contiguous; equal bytes are expected on every rank of the group
};

struct ReplicaDifference {
  std::string tensor;      // first tensor that differs
  std::vector<int> ranks;  // ranks that differ from the majority; all ranks without a majority
  bool majority = false;   // more than half of the ranks agree
  int more_tensors = 0;    // further tensors that differ
  // "weight of X: expected the same bytes on the 4 ranks of group dp, got others on rank 2 (hash ..., others ...)"
  std::string message;
};

// Collective over the group, with equal lists on all ranks and no work pending on other streams; blocks the host. Every
// rank gets the same result. If all ranks agree, 16 bytes per rank are exchanged. `world_ranks`: the group's ranks in
// the world, for the result; empty if the group is the world.
std::optional<ReplicaDifference> compare_replicas(Communicator& group, Stream& stream,
                                                  std::span<const ReplicatedTensor> tensors,
                                                  std::span<const int> world_ranks = {});

}  // namespace megalith
