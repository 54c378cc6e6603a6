// How a layer that is split among the P ranks of a tensor-parallel group reaches the rows and sums of the others. This
// is that of one rank, which has all; parallel/tensor_parallel/tensor_group.h has peers. T: tokens of the microbatch,
// H: hidden size.
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
  // Of all ranks, where this rank holds so many between the linears.
  std::int64_t whole_rows(std::int64_t rows) const { return split().sequence ? rows * split().ranks : rows; }

  // `label` is what the collective carries, for reports of hangs.
  // With sequence parallelism the ranks' rows one after the other, [T / P, H] -> [T, H]; otherwise x itself.
  virtual Tensor gather_rows(const Context&, const Tensor& x, const std::string& /*label*/) { return x; }
  // The sum over ranks of their [T, H], which is overwritten: with sequence parallelism this rank's rows of it,
  // [T / P, H]; otherwise all of them, in place.
  virtual Tensor sum_rows(const Context&, const Tensor& partial, const std::string& /*label*/) { return partial; }

  // The two around the GEMM that reads or makes the rows, called with a piece of them and where it begins: with all at
  // once, or, under overlap, rank by rank, so that the GEMM of one piece runs while another travels.
  using RowsTask = std::function<void(const Tensor& rows, std::int64_t first)>;
  // Returns them all, under overlap but for this rank's.
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
  // Whether backward_data starts to gather what backward_weight reads; otherwise that gathers it.
  virtual bool gathers_behind() const { return false; }
  // gather_rows(ctx, x, label), under overlap after the last sum_rows and concurrently with what follows on the compute
  // stream, until wait_for_rows_behind. x was there before that sum's rows.
  virtual Tensor gather_rows_behind(const Context&, const Tensor& x, const std::string& /*label*/) { return x; }
  virtual void wait_for_rows_behind(const Context&) {}

  // Over the ranks, in place.
  virtual void sum(Stream& /*compute*/, const Tensor& /*buffer*/, const std::string& /*label*/) {}
  virtual void maximum(Stream& /*compute*/, const Tensor& /*buffer*/, const std::string& /*label*/) {}
};

}  // namespace megalith
