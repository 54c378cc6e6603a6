// The collectives of one tensor-parallel group as its layers see them (Shoeybi et al. 2019, arXiv:1909.08053; with
// sequence parallelism Korthikanti et al. 2022, arXiv:2205.05198; overlapped with GEMMs in pieces as by Wang et al.
// 2023, doi:10.1145/3567955.3567959). They run on a communication stream; events on both
// sides order them with the compute stream, which goes on with the result. P: ranks of the group, T: tokens of the
// microbatch, H: hidden size.
#pragma once

#include <functional>
#include <string>

#include "core/layers/context.h"
#include "core/layers/parameter.h"
#include "parallel/comm/comm_lane.h"

namespace megalith {

class TensorGroup {
 public:
  struct Options {
    bool sequence_parallel = false;
    bool overlap = false;  // needs sequence_parallel
  };

  // `group` serves `communication` alone; both outlive this object.
  TensorGroup(Communicator& group, Stream& communication, const Options& options);

  TensorSplit split() const { return {.rank = lane_.group.rank(), .ranks = size(), .sequence = sequence_parallel_}; }
  Communicator& communicator() const { return lane_.group; }
  // Of a microbatch's rows, those that this rank holds between the linears.
  std::int64_t rows(std::int64_t tokens) const { return sequence_parallel_ ? tokens / size() : tokens; }

  bool overlaps() const { return overlap_; }
  // Of all ranks, where this rank holds so many between the linears.
  std::int64_t whole_rows(std::int64_t rows) const { return sequence_parallel_ ? rows * size() : rows; }

  // `label` is what the collective carries, for reports of hangs.
  // With sequence parallelism the ranks' rows one after the other, [T / P, H] -> [T, H]; otherwise x itself.
  Tensor gather_rows(const Context& ctx, const Tensor& x, const std::string& label);
  // The sum over ranks of their [T, H], which is lost: with sequence parallelism this rank's rows of it, [T / P, H];
  // otherwise all of them, in place.
  Tensor sum_rows(const Context& ctx, const Tensor& partial, const std::string& label);

  // The two around the GEMM that reads or makes the rows, called with a piece of them and where it begins: with all at
  // once, or, under overlap, rank by rank, so that the GEMM of one piece runs while another travels. Sums of overlapped
  // pieces are taken in rank order, as a communicator's.
  using RowsTask = std::function<void(const Tensor& rows, std::int64_t first)>;
  void use_rows(const Context& ctx, const Tensor& x, const std::string& label, const RowsTask& use);
  Tensor gather_rows(const Context& ctx, const Tensor& x, const std::string& label, const RowsTask& use);  // all, used
  Tensor sum_rows(const Context& ctx, const Shape& shape, DType dtype, const std::string& label, const RowsTask& make);
  // gather_rows(ctx, x, label), under overlap behind the last sum_rows and beside what follows on the compute stream,
  // until wait_for_rows_behind. x was there before that sum's rows.
  Tensor gather_rows_behind(const Context& ctx, const Tensor& x, const std::string& label);
  void wait_for_rows_behind(const Context& ctx);

  void all_reduce(Stream& compute, const Tensor& buffer, ReduceOp op, const std::string& label);

  CommLane& lane() { return lane_; }

 private:
  // A collective between what is on the compute stream and what comes there.
  template <class Op>
  void communicate(Stream& compute, const Op& op) {
    lane_.start(compute, op);
    lane_.wait(compute);
  }
  int size() const { return lane_.group.size(); }
  // Rows of which all ranks' are there at the end, but this one's.
  Tensor use_others(const Context& ctx, const Tensor& x, const std::string& label, const RowsTask& use);
  // Sends `mine` to the rank `step` above and receives into `theirs` from the rank `step` below.
  void exchange(int step, ShiftSeries series, const Tensor& mine, const Tensor& theirs, const std::string& label);
  void check_divides(std::int64_t rows, const std::string& label) const;
  int above(int step) const { return (lane_.group.rank() + step) % size(); }
  int below(int step) const { return (lane_.group.rank() - step + size()) % size(); }

  CommLane lane_;
  CommLane prefetch_;  // of gather_rows_behind, which outlives a collective
  bool sequence_parallel_;
  bool overlap_;
};

}  // namespace megalith
