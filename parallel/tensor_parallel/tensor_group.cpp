#include "parallel/tensor_parallel/tensor_group.h"

#include <fmt/format.h>

#include <vector>

#include "core/ops/elementwise.h"

namespace megalith {

namespace {

// What comes on `communication` runs after what is on `compute`.
void follow(Stream& communication, Stream& compute, Event& ready) {
  compute.record(ready);
  communication.wait(ready);
}

}  // namespace

TensorGroup::TensorGroup(Communicator& group, Stream& communication, const Options& options)
    : group_(group),
      communication_(communication),
      sequence_parallel_(options.sequence_parallel && group.size() > 1),
      overlap_(options.overlap && sequence_parallel_),
      ready_("tensor-parallel input ready"),
      done_("tensor-parallel collective done"),
      behind_done_("rows gathered behind") {}

void TensorGroup::communicate(Stream& compute, const std::function<void(Stream&)>& enqueue) {
  follow(communication_, compute, ready_);
  enqueue(communication_);
  communication_.record(done_);
  compute.wait(done_);
}

Tensor TensorGroup::gather_rows(const Context& ctx, const Tensor& x, const std::string& label) {
  if (!sequence_parallel_) return x;
  const Tensor whole = ctx.empty({x.size(0) * group_.size(), x.size(1)}, x.dtype, "gathered rows");
  communicate(ctx.compute, [&](Stream& stream) {
    group_.label_next("rows of " + label);
    group_.all_gather(stream, x, whole);
  });
  return whole;
}

Tensor TensorGroup::sum_rows(const Context& ctx, const Tensor& partial, const std::string& label) {
  if (group_.size() == 1) return partial;
  if (!sequence_parallel_) {
    all_reduce(ctx.compute, partial, ReduceOp::kSum, "sum of " + label);
    return partial;
  }
  check_divides(partial.size(0), label);
  const Tensor mine = ctx.empty({partial.size(0) / group_.size(), partial.size(1)}, partial.dtype, "scattered rows");
  communicate(ctx.compute, [&](Stream& stream) {
    group_.label_next("sum of " + label);
    group_.reduce_scatter(stream, partial, mine);
  });
  return mine;
}

void TensorGroup::exchange(int step, ShiftSeries series, const Tensor& mine, const Tensor& theirs,
                           const std::string& label) {
  group_.label_next(fmt::format("{}, piece {} of {}", label, step, group_.size() - 1));
  group_.shift(communication_, mine, theirs, step, series);
}

void TensorGroup::use_rows(const Context& ctx, const Tensor& x, const std::string& label, const RowsTask& use) {
  if (overlap_) {
    use_others(ctx, x, label, use);
  } else {
    use(gather_rows(ctx, x, label), 0);
  }
}

Tensor TensorGroup::gather_rows(const Context& ctx, const Tensor& x, const std::string& label, const RowsTask& use) {
  if (!overlap_) {
    const Tensor whole = gather_rows(ctx, x, label);
    use(whole, 0);
    return whole;
  }
  const Tensor whole = use_others(ctx, x, label, use);
  launch(ctx.compute, Copy{.src = x, .dst = whole.slice(0, group_.rank() * x.size(0), x.size(0))});
  return whole;
}

Tensor TensorGroup::use_others(const Context& ctx, const Tensor& x, const std::string& label, const RowsTask& use) {
  const std::int64_t rows = x.size(0);
  const Tensor whole = ctx.empty({rows * group_.size(), x.size(1)}, x.dtype, "gathered rows");
  const auto piece = [&](int rank) { return whole.slice(0, rank * rows, rows); };
  follow(communication_, ctx.compute, ready_);
  for (int step = 0; step < group_.size(); ++step) {
    const bool more = step + 1 < group_.size();
    if (more) {
      exchange(step + 1, ShiftSeries::kOneInput, x, piece(below(step + 1)), "rows of " + label);
      communication_.record(done_);
    }
    use(step == 0 ? x : piece(below(step)), below(step) * rows);
    if (more) ctx.compute.wait(done_);
  }
  return whole;
}

Tensor TensorGroup::gather_rows_behind(const Context& ctx, const Tensor& x, const std::string& label) {
  require(overlap_, "gather_rows_behind without overlap");
  const std::int64_t rows = x.size(0);
  const Tensor whole = ctx.empty({rows * group_.size(), x.size(1)}, x.dtype, "gathered rows");
  for (int step = 1; step < group_.size(); ++step) {
    exchange(step, ShiftSeries::kOneInput, x, whole.slice(0, below(step) * rows, rows), "rows of " + label);
  }
  launch(communication_, Copy{.src = x, .dst = whole.slice(0, group_.rank() * rows, rows)});
  communication_.record(behind_done_);
  return whole;
}

void TensorGroup::wait_for_rows_behind(const Context& ctx) { ctx.compute.wait(behind_done_); }

Tensor TensorGroup::sum_rows(const Context& ctx, const Shape& shape, DType dtype, const std::string& label,
                             const RowsTask& make) {
  if (!overlap_) {
    const Tensor partial = ctx.empty(shape, dtype, "partial rows");
    make(partial, 0);
    return sum_rows(ctx, partial, label);
  }
  check_divides(shape[0], label);
  const std::int64_t rows = shape[0] / group_.size(), columns = shape[1];
  const Tensor mine = ctx.empty({rows, columns}, dtype, "scattered rows");
  const Tensor sent = ctx.empty({rows * (group_.size() - 1), columns}, dtype, "partial rows of others");
  const Tensor parts = ctx.empty({rows * group_.size(), columns}, dtype, "parts of scattered rows");
  for (int step = 1; step < group_.size(); ++step) {
    const Tensor piece = sent.slice(0, (step - 1) * rows, rows);
    make(piece, above(step) * rows);
    follow(communication_, ctx.compute, ready_);
    exchange(step, ShiftSeries::kManyInputs, piece, parts.slice(0, below(step) * rows, rows), "sum of " + label);
  }
  make(parts.slice(0, group_.rank() * rows, rows), group_.rank() * rows);
  communication_.record(done_);
  ctx.compute.wait(done_);
  launch(ctx.compute, SumParts{.parts = parts.view({group_.size(), rows, columns}), .y = mine});
  return mine;
}

void TensorGroup::check_divides(std::int64_t rows, const std::string& label) const {
  if (rows % group_.size() == 0) return;
  fail({.subject = "rows of " + label,
        .expected = fmt::format("a multiple of the {} tensor-parallel ranks", group_.size()),
        .got = fmt::format("{}", rows)});
}

void TensorGroup::all_reduce(Stream& compute, const Tensor& buffer, ReduceOp op, const std::string& label) {
  if (group_.size() == 1) return;
  communicate(compute, [&](Stream& stream) {
    group_.label_next(label);
    group_.all_reduce(stream, buffer, op);
  });
}

}  // namespace megalith
