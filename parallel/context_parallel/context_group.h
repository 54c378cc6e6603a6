// The ranks that share each sequence of a microbatch, as their attention sees them. Their messages run on a stream of
// their own; what a message carries is waited for where it is needed, so that it travels while attention computes.
#pragma once

#include <functional>
#include <string>

#include "core/device/event.h"
#include "core/layers/context.h"
#include "core/ops/sequence_part.h"
#include "parallel/comm/communicator.h"

namespace megalith {

class ContextGroup {
 public:
  // Of two kinds one message each may be under way.
  enum class Lane { kKeys, kGradients };

  // `group` serves `communication` alone; both outlive this object.
  ContextGroup(Communicator& group, Stream& communication);

  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }
  Communicator& communicator() const { return group_; }
  // Tokens of each sequence that a rank holds, of `length`.
  std::int64_t tokens(std::int64_t length) const { return length / group_.size(); }
  SequencePart part(std::int64_t length) const { return part_of_sequence(length, group_.rank(), group_.size()); }

  // From the compute stream's point of view: what is enqueued on it before has been done when `enqueue`'s work begins,
  // and that is done after wait(). `label` is what it carries, for reports of hangs.
  void begin(Stream& compute, Lane lane, const std::string& label,
             const std::function<void(Communicator& group, Stream& communication)>& enqueue);
  void wait(Stream& compute, Lane lane);

  // `out` becomes the previous rank's `in`, rank 0's that of the last; begin() only.
  void shift(Stream& compute, Lane lane, const std::string& label, const Tensor& in, const Tensor& out);

 private:
  Event& done(Lane lane) { return lane == Lane::kKeys ? keys_done_ : gradients_done_; }

  Communicator& group_;
  Stream& communication_;
  Event ready_;  // recorded at each message; a wait refers to the record before it
  Event keys_done_;
  Event gradients_done_;
};

}  // namespace megalith
