#include "parallel/tensor_parallel/tensor_group.h"

#include <fmt/format.h>

#include "core/ops/elementwise/elementwise.h"

namespace megalith {

TensorGroup::TensorGroup(Communicator& group, Stream& communication, const Options& options)
    : lane_(group, communication, "tensor-parallel rows"),
      prefetch_(group, communication, "prefetched rows"),
      sequence_parallel_(options.sequence_parallel && group.size() > 1),
      overlap_(options.overlap && sequence_parallel_),
      splits_backward_(options.splits_backward) {}

Tensor TensorGroup::gather_rows(const Context& ctx, const Tensor& x, const std::string& label) {
  if (!sequence_parallel_) return x;
  const Tensor whole = ctx.empty({x.size(0) * size(), x.size(1)}, x.dtype, "gathered rows");
  communicate(ctx.compute, AllGather{.group = lane_.group, .in = x, .out = whole, .label = "rows of " + label});
  return whole;
}

Tensor TensorGroup::sum_rows(const Context& ctx, const Tensor& partial, const std::string& label) {
  if (size() == 1) return partial;
  if (!sequence_parallel_) {
    sum(ctx.compute, partial, "sum of " + label);
    return partial;
  }
  check_divides(partial.size(0), label);
  const Tensor mine = ctx.empty({partial.size(0) / size(), partial.size(1)}, partial.dtype, "scattered rows");
  communicate(ctx.compute, ReduceScatter{.group = lane_.group, .in = partial, .out = mine, .label = "sum of " + label});
  return mine;
}

void TensorGroup::exchange(int step, ShiftSeries series, const Tensor& mine, const Tensor& theirs,
                           const std::string& label) {
  launch(lane_.stream, Shift{.group = lane_.group,
                             .in = mine,
                             .out = theirs,
                             .step = step,
                             .series = series,
                             .label = fmt::format("{}, piece {} of {}", label, step, size() - 1)});
}

Tensor TensorGroup::use_rows(const Context& ctx, const Tensor& x, const std::string& label, const RowsTask& use) {
  if (!overlap_) {
    const Tensor whole = gather_rows(ctx, x, label);
    use(whole, 0);
    return whole;
  }
  const std::int64_t rows = x.size(0);
  const Tensor whole = ctx.empty({rows * size(), x.size(1)}, x.dtype, "gathered rows");
  const auto piece = [&](int rank) { return whole.slice(0, rank * rows, rows); };
  lane_.begin(ctx.compute);
  for (int step = 0; step < size(); ++step) {
    const bool more = step + 1 < size();
    if (more) {
      exchange(step + 1, ShiftSeries::kOneInput, x, piece(below(step + 1)), "rows of " + label);
      lane_.end();
    }
    use(step == 0 ? x : piece(below(step)), below(step) * rows);
    if (more) lane_.wait(ctx.compute);
  }
  return whole;
}

Tensor TensorGroup::prefetch_rows(const Context& ctx, const Tensor& x, const std::string& label) {
  require(prefetches_rows(), "prefetch_rows without overlap");
  const std::int64_t rows = x.size(0);
  const Tensor whole = ctx.empty({rows * size(), x.size(1)}, x.dtype, "gathered rows");
  for (int step = 1; step < size(); ++step) {
    exchange(step, ShiftSeries::kOneInput, x, whole.slice(0, below(step) * rows, rows), "rows of " + label);
  }
  launch(lane_.stream, Copy{.src = x, .dst = whole.slice(0, lane_.group.rank() * rows, rows)});
  prefetch_.end();
  return whole;
}

void TensorGroup::wait_for_prefetched_rows(const Context& ctx) { prefetch_.wait(ctx.compute); }

Tensor TensorGroup::sum_rows(const Context& ctx, const Shape& shape, DType dtype, const std::string& label,
                             const RowsTask& make) {
  if (!overlap_) {
    const Tensor partial = ctx.empty(shape, dtype, "partial rows");
    make(partial, 0);
    return sum_rows(ctx, partial, label);
  }
  check_divides(shape[0], label);
  const std::int64_t rows = shape[0] / size(), columns = shape[1];
  const Tensor mine = ctx.empty({rows, columns}, dtype, "scattered rows");
  const Tensor sent = ctx.empty({rows * (size() - 1), columns}, dtype, "partial rows of others");
  const Tensor parts = ctx.empty({rows * size(), columns}, dtype, "parts of scattered rows");
  for (int step = 1; step < size(); ++step) {
    const Tensor piece = sent.slice(0, (step - 1) * rows, rows);
    make(piece, above(step) * rows);
    lane_.begin(ctx.compute);
    exchange(step, ShiftSeries::kManyInputs, piece, parts.slice(0, below(step) * rows, rows), "sum of " + label);
  }
  make(parts.slice(0, lane_.group.rank() * rows, rows), lane_.group.rank() * rows);
  lane_.end();
  lane_.wait(ctx.compute);
  launch(ctx.compute, SumParts{.parts = parts.view({size(), rows, columns}), .y = mine});
  return mine;
}

void TensorGroup::check_divides(std::int64_t rows, const std::string& label) const {
  if (rows % size() == 0) return;
  fail({.subject = "rows of " + label,
        .expected = fmt::format("a multiple of the {} tensor-parallel ranks", size()),
        .got = fmt::format("{}", rows)});
}

void TensorGroup::all_reduce(Stream& compute, const Tensor& buffer, ReduceOp op, const std::string& label) {
  if (size() == 1) return;
  communicate(compute, AllReduce{.group = lane_.group, .buffer = buffer, .op = op, .label = label});
}

}  // namespace megalith
