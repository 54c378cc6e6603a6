#include "parallel/tensor_parallel/tensor_group.h"

#include <fmt/format.h>

namespace megalith {

TensorGroup::TensorGroup(Communicator& group, Stream& communication, bool sequence_parallel)
    : group_(group),
      communication_(communication),
      sequence_parallel_(sequence_parallel && group.size() > 1),
      ready_("tensor-parallel input ready"),
      done_("tensor-parallel collective done") {}

void TensorGroup::communicate(Stream& compute, const std::function<void(Stream&)>& enqueue) {
  compute.record(ready_);
  communication_.wait(ready_);
  enqueue(communication_);
  communication_.record(done_);
  compute.wait(done_);
}

Tensor TensorGroup::gather_rows(Context& ctx, const Tensor& x, const std::string& label) {
  if (!sequence_parallel_) return x;
  const Tensor whole = ctx.empty({x.size(0) * group_.size(), x.size(1)}, x.dtype, "gathered rows");
  communicate(ctx.compute, [&](Stream& stream) {
    group_.label_next("rows of " + label);
    group_.all_gather(stream, x, whole);
  });
  return whole;
}

Tensor TensorGroup::sum_rows(Context& ctx, const Tensor& partial, const std::string& label) {
  if (group_.size() == 1) return partial;
  if (!sequence_parallel_) {
    all_reduce(ctx.compute, partial, ReduceOp::kSum, "sum of " + label);
    return partial;
  }
  if (partial.size(0) % group_.size() != 0) {
    fail({.subject = "rows of " + label,
          .expected = fmt::format("a multiple of the {} tensor-parallel ranks", group_.size()),
          .got = fmt::format("{}", partial.size(0))});
  }
  const Tensor mine = ctx.empty({partial.size(0) / group_.size(), partial.size(1)}, partial.dtype, "scattered rows");
  communicate(ctx.compute, [&](Stream& stream) {
    group_.label_next("sum of " + label);
    group_.reduce_scatter(stream, partial, mine);
  });
  return mine;
}

void TensorGroup::all_reduce(Stream& compute, const Tensor& buffer, ReduceOp op, const std::string& label) {
  if (group_.size() == 1) return;
  communicate(compute, [&](Stream& stream) {
    group_.label_next(label);
    group_.all_reduce(stream, buffer, op);
  });
}

}  // namespace megalith
