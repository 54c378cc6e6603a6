// Collectives among the ranks of one group, each enqueued on a stream and asynchronous to the host. All ranks of a group
// must enqueue the same sequence. Sums are taken in rank order in fp32, so every implementation gives the same bits.
// Implementations: mpi_communicator.h (processes), thread_communicator.h (ranks as threads, for ThreadSanitizer),
// single_communicator.h (one rank), plan_communicator.h (any size, on plan streams only).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/device/stream.h"
#include "core/tensor/tensor.h"

namespace megalith {

enum class ReduceOp : std::uint8_t { kSum, kMax };

// What a group did so far, for tests and reports: an ignored flag cannot claim to have communicated.
struct CommunicatorStats {
  std::int64_t collectives = 0;
  std::int64_t bytes = 0;  // payload this rank put in
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

  // buffer[n] fp32 | bf16 | fp64 | int32 | int64, contiguous, in place. kMax of floats propagates NaN.
  void all_reduce(Stream& stream, const Tensor& buffer, ReduceOp op = ReduceOp::kSum);
  // in[size * n] -> out[n]: the sum over ranks of each rank's n elements. out may be in's own part.
  void reduce_scatter(Stream& stream, const Tensor& in, const Tensor& out);
  // in[n] -> out[size * n], in rank order. in may be out's own part.
  void all_gather(Stream& stream, const Tensor& in, const Tensor& out);
  // in[size * n] -> out[size * n]: part r goes to rank r.
  void all_to_all(Stream& stream, const Tensor& in, const Tensor& out);
  // Rows (dim 0) of in and out are split by the counts, one per rank; counts are host values.
  void all_to_all_v(Stream& stream, const Tensor& in, std::span<const std::int64_t> in_rows, const Tensor& out,
                    std::span<const std::int64_t> out_rows);
  void broadcast(Stream& stream, const Tensor& buffer, int root);
  void send(Stream& stream, const Tensor& buffer, int peer);
  void receive(Stream& stream, const Tensor& buffer, int peer);

  // Host control plane: blocking, small, for start-up, checkpoints and errors.
  virtual void host_barrier() = 0;
  virtual std::vector<std::string> host_all_gather(const std::string& mine) = 0;
  bool host_any(bool mine);
  std::string host_broadcast(const std::string& value, int root);

  // A group of those ranks that pass the same color, ordered by key; collective over this group.
  virtual std::unique_ptr<Communicator> split(int color, int key, const std::string& name) = 0;

 protected:
  Communicator(std::string name, int rank, int size) : name_(std::move(name)), rank_(rank), size_(size) {}

  // Run on the stream's worker, blocking it until complete.
  virtual void do_all_reduce(const Tensor& buffer, ReduceOp op) = 0;
  virtual void do_reduce_scatter(const Tensor& in, const Tensor& out) = 0;
  virtual void do_all_gather(const Tensor& in, const Tensor& out) = 0;
  virtual void do_all_to_all_v(const Tensor& in, const std::vector<std::int64_t>& in_rows, const Tensor& out,
                               const std::vector<std::int64_t>& out_rows) = 0;
  virtual void do_broadcast(const Tensor& buffer, int root) = 0;
  virtual void do_send(const Tensor& buffer, int peer) = 0;
  virtual void do_receive(const Tensor& buffer, int peer) = 0;

 private:
  void enqueue(Stream& stream, const Access& access, std::size_t bytes, std::function<void()> task);

  std::string name_;
  int rank_;
  int size_;
  CommunicatorStats stats_;
};

}  // namespace megalith
