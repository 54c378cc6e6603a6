// Collectives among the ranks of one group, each enqueued on a stream and asynchronous to the host. All ranks of a
// group must enqueue the same sequence, and a group serves one stream at a time: for a second stream that is not
// ordered by events make a duplicate(). Sums are taken in rank order, in fp32 for fp32 and bf16 (rounded once) and in
// fp64 for fp64, so every implementation gives the same bits on every rank; NCCL alone has an order of its own
// (nccl_communicator.h). Buffers of numel 0 are legal.
// Implementations: mpi_runtime.h (processes), nccl_communicator.h (processes with a GPU each), thread_communicator.h
// (ranks as threads, for ThreadSanitizer), single_communicator.h (one rank), plan_communicator.h (any size, on plan
// streams only).
// Errors: exit code 9 for a call that is wrong in itself, 7 when a peer made another call, failed, was lost or did not
// come in time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/device/stream.h"
#include "core/tensor/tensor.h"
#include "parallel/comm/flight_recorder.h"

namespace megalith {

enum class ReduceOp : std::uint8_t { kSum, kMax };

// Whether a shift is one of a series: those by 1, 2, ... size - 1, on one stream, whose inputs nobody writes before the
// last has run. Ranks that read each other's memory then meet less often.
enum class ShiftSeries : std::uint8_t {
  kAlone,
  kOneInput,    // all of them send the same
  kManyInputs,  // each its own
};

// What a group did so far, for tests and reports: an ignored flag cannot claim to have communicated.
struct CommunicatorStats {
  std::int64_t collectives = 0;  // calls enqueued while the group has more than one rank, sends and receives included
  std::int64_t bytes = 0;        // payload this rank put in
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return name_; }  // of the mesh axis: "dp"
  const CommunicatorStats& stats() const { return stats_; }
  FlightRecorder& recorder() const { return *recorder_; }
  // What the next call on this group carries, for reports of hangs: "gradients of bucket 2".
  void label_next(std::string label) { label_ = std::move(label); }

  // buffer[n] fp32 | bf16 | fp64 | int32 | int64, contiguous, in place. kMax of floats propagates NaN.
  void all_reduce(Stream& stream, const Tensor& buffer, ReduceOp op = ReduceOp::kSum);
  // in[size * n] -> out[n]: the sum over ranks of each rank's n elements. out may be in's own part.
  void reduce_scatter(Stream& stream, const Tensor& in, const Tensor& out);
  // in[n] -> out[size * n], in rank order. in may be out's own part.
  void all_gather(Stream& stream, const Tensor& in, const Tensor& out);
  // in[size * n] -> out[size * n]: part r goes to rank r.
  void all_to_all(Stream& stream, const Tensor& in, const Tensor& out);
  // Rows (dim 0) of in and out are split by the counts, one per rank; counts are host values. Rows beyond their sum are
  // neither read nor written.
  void all_to_all_v(Stream& stream, const Tensor& in, std::span<const std::int64_t> in_rows, const Tensor& out,
                    std::span<const std::int64_t> out_rows);
  // in goes to the rank `step` above this one, out comes from the rank `step` below, around the end: in[n] -> out[n],
  // 0 < step < size.
  void shift(Stream& stream, const Tensor& in, const Tensor& out, int step, ShiftSeries series = ShiftSeries::kAlone);
  void broadcast(Stream& stream, const Tensor& buffer, int root);
  // Occupies the stream until the peer's receive was enqueued too and has run (small messages may leave earlier).
  void send(Stream& stream, const Tensor& buffer, int peer);
  void receive(Stream& stream, const Tensor& buffer, int peer);

  // Lets the peers read [base, base + bytes) themselves: shifts within it then need no multiprocessor of the GPU, where
  // the group's ranks are processes with a GPU each on one host, which from then on shift from equal offsets. Returns
  // whether it is so; it is not where ranks pass other bytes or another `layout`, a digest of what lies where.
  // Otherwise shifts go as all other calls do. Collective, once a group; the memory is freed after unshare_memory,
  // which is collective too and called when no shift is pending.
  virtual bool share_memory(void* base, std::size_t bytes, std::uint64_t layout);
  virtual void unshare_memory() {}

  // Host control plane: blocking, small, for start-up, checkpoints and errors; separate from the streams' traffic.
  // Called by one thread per rank, in the same sequence on all ranks.
  virtual void host_barrier() = 0;
  virtual std::vector<std::string> host_all_gather(const std::string& mine) = 0;
  bool host_any(bool mine);  // true on every rank when it is true on one
  std::string host_broadcast(const std::string& value, int root);

  // A group of those ranks that pass the same color >= 0, ordered by key; collective over this group.
  virtual std::unique_ptr<Communicator> split(int color, int key, const std::string& name) = 0;
  // A group of `ranks` of this group (this rank among them, every rank in exactly one list); collective over this
  // group.
  virtual std::unique_ptr<Communicator> subgroup(std::span<const int> ranks, const std::string& name);
  // The same ranks once more, for use on another stream; collective over this group.
  std::unique_ptr<Communicator> duplicate(const std::string& name);

  // This rank failed: calls that wait, or come later, on any group of its world throw Error (exit code 7) with
  // `message`. With ranks as threads that holds for all ranks; with processes for this one, whose main then ends the
  // others by MpiRuntime::abort. From any thread.
  virtual void abort(const std::string& message) = 0;

 protected:
  Communicator(std::string name, int rank, int size)
      : name_(std::move(name)), rank_(rank), size_(size), recorder_(std::make_shared<FlightRecorder>(name_)) {}
  const std::shared_ptr<FlightRecorder>& shared_recorder() const { return recorder_; }

  // Calls `task`, which calls one of the do_* below, so that they enqueue on `stream`. `call` has static lifetime. An
  // error here, for groups that serve no CUDA stream.
  virtual void run_on(CudaStream& stream, std::string_view call, const std::function<void()>& task);

  // A call was enqueued on a plan stream, whose timeline ends with it. `bytes` as CommunicatorStats counts them.
  virtual void on_plan(Stream& stream, std::string_view call, std::size_t bytes);

  // Run on a CPU stream's worker, blocking it until complete, or inside run_on. The arguments have been checked.
  virtual void do_all_reduce(const Tensor& buffer, ReduceOp op) = 0;
  virtual void do_reduce_scatter(const Tensor& in, const Tensor& out) = 0;
  virtual void do_all_gather(const Tensor& in, const Tensor& out) = 0;
  virtual void do_all_to_all_v(const Tensor& in, const std::vector<std::int64_t>& in_rows, const Tensor& out,
                               const std::vector<std::int64_t>& out_rows) = 0;
  virtual void do_shift(const Tensor& in, const Tensor& out, int step, ShiftSeries series);  // by do_all_to_all_v
  virtual void do_broadcast(const Tensor& buffer, int root) = 0;
  virtual void do_send(const Tensor& buffer, int peer) = 0;
  virtual void do_receive(const Tensor& buffer, int peer) = 0;

 private:
  // `call` is recorded; its kind is the access's name.
  void enqueue(Stream& stream, const Access& access, std::size_t bytes, CollectiveCall call,
               std::function<void()> task);
  std::string subject(std::string_view call, std::string_view argument = "") const;
  void check_rank(int rank, std::string_view call, std::string_view argument) const;

  std::string name_;
  int rank_;
  int size_;
  CommunicatorStats stats_;
  std::shared_ptr<FlightRecorder> recorder_;
  std::string label_;                // of the next call
  std::atomic<bool> in_use_{false};  // by a stream's worker
};

// Declared after the streams of a rank: when an exception leaves the scope, the group is aborted before the streams'
// destructors finish their queues, which would otherwise wait for peers that wait for this rank.
class AbortOnUnwind {
 public:
  explicit AbortOnUnwind(Communicator& group);
  ~AbortOnUnwind();
  AbortOnUnwind(const AbortOnUnwind&) = delete;
  AbortOnUnwind& operator=(const AbortOnUnwind&) = delete;

 private:
  Communicator& group_;
  int exceptions_;
};

}  // namespace megalith
