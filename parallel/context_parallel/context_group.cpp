#include "parallel/context_parallel/context_group.h"

namespace megalith {

ContextGroup::ContextGroup(Communicator& group, Stream& communication)
    : group_(group),
      communication_(communication),
      ready_("context-parallel message ready"),
      keys_done_("keys received"),
      gradients_done_("gradients of keys received") {}

void ContextGroup::begin(Stream& compute, Lane lane, const std::string& label,
                         const std::function<void(Communicator&, Stream&)>& enqueue) {
  compute.record(ready_);
  communication_.wait(ready_);
  group_.label_next(label);
  enqueue(group_, communication_);
  communication_.record(done(lane));
}

void ContextGroup::wait(Stream& compute, Lane lane) { compute.wait(done(lane)); }

void ContextGroup::shift(Stream& compute, Lane lane, const std::string& label, const Tensor& in, const Tensor& out) {
  begin(compute, lane, label, [&](Communicator& group, Stream& stream) { group.shift(stream, in, out, 1); });
}

}  // namespace megalith
