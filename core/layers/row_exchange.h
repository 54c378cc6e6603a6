// Access of a tensor-parallel layer to rows and sums of the group's P ranks. This class is for one rank, which has all
// rows; parallel/tensor_parallel/tensor_group.h communicates. T: tokens of the microbatch, H: hidden size.
#pragma once

#include <functional>
#include <string>

#include "core/layers/context.h"
#include "core/layers/parameter.h"
#include "core/ops/elementwise/elementwise.h"

namespace megalith {

class RowExchange {
 public:
  virtual ~RowExchange() = default;

  virtual TensorSplit split() const { return {}; }
  // Returns the rows of all ranks, if this rank holds `rows` between the linears.
  std::int64_t whole_rows(std::int64_t rows) const { return split().sequence ? rows * split().ranks : rows; }

  // `label` is the collective's name in reports of hangs. With sequence parallelism returns the ranks' rows
  // concatenated, [T / P, H] -> [T, H]; otherwise x.
  virtual Tensor gather_rows(const Context&, const Tensor& x, const std::string& /*label*/) { return x; }
  // Returns the sum over ranks of [T, H], which is overwritten: with sequence parallelism this rank's rows, [T / P, H];
  // otherwise all rows, in place.
  virtual Tensor sum_rows(const Context&, const Tensor& partial, const std::string& /*label*/) { return partial; }

  // The same two collectives around the GEMM that reads or makes the rows. The task is called once with all rows or,
  // under overlap, with each rank's rows. The GEMM of one piece then overlaps the transfer of another.
  using RowsTask = std::function<void(const Tensor& rows, std::int64_t first)>;
  // Returns all rows; under overlap without this rank's.
  virtual Tensor use_rows(const Context&, const Tensor& x, const std::string& /*label*/, const RowsTask& use) {
    use(x, 0);
    return x;
  }
  Tensor gather_rows(const Context& ctx, const Tensor& x, const std::string& label, const RowsTask& use) {
    const Tensor whole = use_rows(ctx, x, label, use);
    if (overlaps()) launch(ctx.compute, Copy{.src = x, .dst = whole.slice(0, split().rank * x.size(0), x.size(0))});
    return whole;
  }
  virtual Tensor sum_rows(const Context& ctx, const Shape& shape, DType dtype, const std::string& /*label*/,
                          const RowsTask& make) {
    const Tensor rows = ctx.empty(shape, dtype, "matmul");
    make(rows, 0);
    return rows;
  }

  virtual bool overlaps() const { return false; }
  // Returns whether backward_data starts the gather that backward_weight reads.
  virtual bool prefetches_rows() const { return false; }
  // gather_rows(ctx, x, label). Under overlap it runs after the last sum_rows, concurrently with the compute stream,
  // until wait_for_prefetched_rows. x must have existed before that sum's rows.
  virtual Tensor prefetch_rows(const Context&, const Tensor& x, const std::string& /*label*/) { return x; }
  virtual void wait_for_prefetched_rows(const Context&) {}

  // Reductions over the ranks, in place.
  virtual void sum(Stream& /*compute*/, const Tensor& /*buffer*/, const std::string& /*label*/) {}
  virtual void maximum(Stream& /*compute*/, const Tensor& /*buffer*/, const std::string& /*label*/) {}
};

}  // namespace megalith
