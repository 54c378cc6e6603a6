// The ranks that share each sequence of a microbatch, as their attention sees them. Their messages run on a stream of
// their own; what a message carries is waited for where it is needed, so that it travels while attention computes.
#pragma once

#include "core/layers/context.h"
#include "core/ops/sequence_part.h"
#include "parallel/comm/comm_lane.h"

namespace megalith {

struct ContextGroup {
  // `group` serves `communication` alone; both outlive this object.
  ContextGroup(Communicator& group, Stream& communication)
      : keys(group, communication, "keys and values"), gradients(group, communication, "gradients of keys") {}

  int rank() const { return keys.group.rank(); }
  int size() const { return keys.group.size(); }
  Communicator& communicator() const { return keys.group; }
  // Tokens of each sequence that a rank holds, of `length`.
  std::int64_t tokens(std::int64_t length) const { return length / size(); }
  SequencePart part(std::int64_t length) const { return part_of_sequence(length, rank(), size()); }

  // One message each may be under way.
  CommLane keys;
  CommLane gradients;
};

}  // namespace megalith
