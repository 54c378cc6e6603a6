// Ranks of one group, and execution of the collectives of collective.h, enqueued on a stream and asynchronous to the
// host. A group serves one stream at a time; for a second unordered stream use duplicate(). Sums are in rank order, in
// fp32 for fp32 and bf16 (rounded once) and in fp64 for fp64. Therefore all implementations produce equal bits on every
// rank, except NCCL (nccl_communicator.h). Implementations: mpi_runtime.h (processes), nccl_communicator.h (processes
// with one GPU each), single_communicator.h (one rank), plan_communicator.h (any size, plan streams only); tests have
// thread ranks. Errors: exit code 9 for an invalid call, 7 if a peer made another call, failed, was lost or timed out.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/error.h"
#include "core/device/stream.h"
#include "parallel/comm/collective.h"
#include "parallel/watch/flight_recorder.h"

namespace megalith {

class MemorySharing;  // memory_sharing.h

// Counts of a group, for tests and reports of actual communication.
struct CommunicatorStats {
  std::int64_t collectives = 0;  // with more than one rank, including sends and receives; each replay counts
  std::int64_t bytes = 0;        // payload sent by this rank
  // `bytes` of ExchangeRows: rows sent to other ranks if the host runs the calls, otherwise the expected rows. Numbers
  // of calls by path:
  std::int64_t messages = 0;  // exact numbers of rows, on CPU ranks
  std::int64_t pulled = 0;    // read by the target's GPU
  std::int64_t padded = 0;    // in equal parts through NCCL
  // Calls of NCCL's communicator for graphs: rehearsed calls, and each call of each replay.
  std::int64_t graph_calls = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return name_; }  // name of the mesh axis: "dp"
  CommunicatorStats stats() const;
  FlightRecorder& recorder() const { return *recorder_; }

  // Called by launch().
  void enqueue(Stream& stream, Collective collective);

  // Host control plane for start-up, checkpoints and errors: blocking, small, separate from the streams' traffic.
  // Called by one thread per rank, in the same sequence on all ranks.
  virtual void host_barrier() = 0;
  virtual std::vector<std::string> host_all_gather(const std::string& mine) = 0;
  virtual bool host_any(bool mine) = 0;  // true on every rank if it is true on one
  // Gathers one value per rank, in rank order; T holds no pointers.
  template <class T>
  requires(std::is_trivially_copyable_v<T>) std::vector<T> host_gather(const T& mine);
  std::string host_broadcast(const std::string& value, int root);

  // Creates a group of the ranks with the same color >= 0, ordered by key. Collective over this group.
  virtual std::unique_ptr<Communicator> split(int color, int key, const std::string& name) = 0;
  // Creates a group of `ranks`, which include this rank; every rank is in exactly one list. Collective over this group.
  virtual std::unique_ptr<Communicator> subgroup(std::span<const int> ranks, const std::string& name);
  // Creates a group of the same ranks, for another stream. Collective over this group.
  std::unique_ptr<Communicator> duplicate(const std::string& name);

  // While on, eager calls use and set up the path of captured calls, if that path differs, since a capture must not
  // wait for peers. One call of each kind suffices, on all ranks equally. Returns whether the paths differ.
  virtual bool rehearse_captures(bool /*on*/) { return false; }

  // True if another group of this size sums the same addends to equal bits.
  virtual bool sums_in_rank_order() const { return true; }

  // Null if ranks cannot read each other's memory.
  virtual MemorySharing* memory_sharing() { return nullptr; }

  // Marks this rank as failed. Waiting and later calls on any group of its world throw Error (exit code 7) with
  // `message`. For thread ranks this affects all ranks. For processes it affects this one, whose main then ends the
  // others by MpiRuntime::abort. Callable from any thread.
  virtual void abort(const std::string& message) = 0;

 protected:
  Communicator(std::string name, int rank, int size)
      : name_(std::move(name)), rank_(rank), size_(size), recorder_(std::make_shared<FlightRecorder>(name_)) {}
  const std::shared_ptr<FlightRecorder>& shared_recorder() const { return recorder_; }

  // Runs a checked collective on a CPU stream's worker; blocks it until the collective is complete.
  virtual void run(const Collective& collective) = 0;
  // Enqueues the collective on a CUDA stream, which may be capturing. An error for groups without CUDA.
  virtual void run(Stream& stream, CudaStream& cuda, const Collective& collective);
  // Counts bytes that an ExchangeRows on a worker sent to other ranks.
  void count_sent(std::int64_t bytes);
  // Counts the path of an ExchangeRows for each execution. Called while run() enqueues on a CUDA stream.
  void count_path(Stream& stream, std::int64_t CommunicatorStats::*path);
  // Called after the announcement on a plan stream, whose timeline ends with it. `bytes` is as in CommunicatorStats.
  virtual void on_plan(Stream& stream, const Collective& collective, std::int64_t bytes);

 private:
  std::string name_;
  int rank_;
  int size_;
  CommunicatorStats stats_;                // by the host
  std::atomic<std::int64_t> messages_{0};  // by the worker, as are the bytes that only it knows
  std::atomic<std::int64_t> sent_{0};
  std::shared_ptr<FlightRecorder> recorder_;
  std::atomic<bool> in_use_{false};  // by a stream's worker
};

template <class T>
requires(std::is_trivially_copyable_v<T>) std::vector<T> Communicator::host_gather(const T& mine) {
  std::vector<T> values;
  for (const std::string& bytes : host_all_gather(std::string(reinterpret_cast<const char*>(&mine), sizeof(T)))) {
    require(bytes.size() == sizeof(T), "host_gather: ranks that gather other types");
    std::memcpy(&values.emplace_back(), bytes.data(), sizeof(T));
  }
  return values;
}

template <class Op, class... Ops>
constexpr bool is_one_of(const std::variant<Ops...>*) {
  return (std::is_same_v<Op, Ops> || ...);
}

// Counterpart of launch() of core/ops/op.h.
template <class Op>
requires(is_one_of<Op>(static_cast<Collective*>(nullptr))) void launch(Stream& stream, const Op& op) {
  op.group.enqueue(stream, op);
}

// Guard, declared after the streams of a rank. If an exception leaves the scope, it aborts the group before the
// streams' destructors finish their queues. These could otherwise wait for peers that wait for this rank.
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
