// Group of the ranks that share each sequence of a microbatch, for attention. Messages run on a dedicated stream. They
// are waited for at their first use, so they overlap with attention.
#pragma once

#include "core/layers/context.h"
#include "core/ops/sequence_part.h"
#include "parallel/comm/comm_lane.h"

namespace megalith {

struct ContextGroup {
  // `group` serves `communication` only; both outlive this object.
  ContextGroup(Communicator& group, Stream& communication)
      : keys(group, communication, "keys and values"), gradients(group, communication, "gradients of keys") {}

  int rank() const { return keys.group.rank(); }
  int size() const { return keys.group.size(); }
  Communicator& communicator() const { return keys.group; }
  // Tokens of each sequence of `length` on a rank.
  std::int64_t tokens(std::int64_t length) const { return length / size(); }
  SequencePart part(std::int64_t length) const { return part_of_sequence(length, rank(), size()); }

  // Each lane has at most one message in flight.
  CommLane keys;
  CommLane gradients;
};

}  // namespace megalith
