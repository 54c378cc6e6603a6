// Collectives of a tensor-parallel group for its layers (Shoeybi et al. 2019, arXiv:1909.08053). Sequence parallelism:
// Korthikanti et al. 2022, arXiv:2205.05198. Overlap with GEMMs in pieces: Wang et al. 2023,
// doi:10.1145/3567955.3567959. Collectives run on a communication stream; events order them with the compute stream.
// Sums of overlapped pieces are in rank order, as a communicator's.
#pragma once

#include "core/layers/row_exchange.h"
#include "parallel/comm/comm_lane.h"

namespace megalith {

class TensorGroup : public RowExchange {
 public:
  struct Options {
    bool sequence_parallel = false;
    bool overlap = false;  // requires sequence_parallel
    // backward_data and backward_weight are captured as separate graphs: no gather runs from one into the other.
    bool splits_backward = false;
  };

  // `group` serves `communication` only; both outlive this object.
  TensorGroup(Communicator& group, Stream& communication, const Options& options);

  Communicator& communicator() const { return lane_.group; }
  CommLane& lane() { return lane_; }
  // Rows of a microbatch that this rank holds between the linears.
  std::int64_t rows(std::int64_t tokens) const { return sequence_parallel_ ? tokens / size() : tokens; }

  TensorSplit split() const override { return {lane_.group.rank(), size(), sequence_parallel_}; }
  using RowExchange::gather_rows;
  Tensor gather_rows(const Context& ctx, const Tensor& x, const std::string& label) override;
  Tensor sum_rows(const Context& ctx, const Tensor& partial, const std::string& label) override;
  Tensor use_rows(const Context& ctx, const Tensor& x, const std::string& label, const RowsTask& use) override;
  Tensor sum_rows(const Context& ctx, const Shape& shape, DType dtype, const std::string& label,
                  const RowsTask& make) override;
  bool overlaps() const override { return overlap_; }
  bool prefetches_rows() const override { return overlap_ && !splits_backward_; }
  Tensor prefetch_rows(const Context& ctx, const Tensor& x, const std::string& label) override;
  void wait_for_prefetched_rows(const Context& ctx) override;
  void sum(Stream& compute, const Tensor& buffer, const std::string& label) override {
    all_reduce(compute, buffer, ReduceOp::kSum, label);
  }
  void maximum(Stream& compute, const Tensor& buffer, const std::string& label) override {
    all_reduce(compute, buffer, ReduceOp::kMax, label);
  }

 private:
  // Runs a collective between earlier and later work of the compute stream.
  template <class Op>
  void communicate(Stream& compute, const Op& op) {
    lane_.start(compute, op);
    lane_.wait(compute);
  }
  void all_reduce(Stream& compute, const Tensor& buffer, ReduceOp op, const std::string& label);
  int size() const { return lane_.group.size(); }
  // Sends `mine` to the rank `step` above and receives into `theirs` from the rank `step` below.
  void exchange(int step, ShiftSeries series, const Tensor& mine, const Tensor& theirs, const std::string& label);
  void check_divides(std::int64_t rows, const std::string& label) const;
  int above(int step) const { return (lane_.group.rank() + step) % size(); }
  int below(int step) const { return (lane_.group.rank() - step + size()) % size(); }

  CommLane lane_;
  CommLane prefetch_;  // for prefetch_rows, which outlives a collective
  bool sequence_parallel_;
  bool overlap_;
  bool splits_backward_;
};

}  // namespace megalith
