#include "parallel/context_parallel/context_group.h"

#include <vector>

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

// One call that both sends and receives: with a send and a receive apart all ranks could wait for each other.
void ContextGroup::shift(Stream& compute, Lane lane, const std::string& label, const Tensor& in, const Tensor& out) {
  begin(compute, lane, label, [&](Communicator& group, Stream& stream) {
    const auto size = static_cast<std::size_t>(group.size()), rank = static_cast<std::size_t>(group.rank());
    std::vector<std::int64_t> sent(size, 0), received(size, 0);
    sent[(rank + 1) % size] = 1;
    received[(rank + size - 1) % size] = 1;
    group.all_to_all_v(stream, in.view({1, in.numel()}), sent, out.view({1, out.numel()}), received);
  });
}

}  // namespace megalith
