// The ranks of one group, and how they run the collectives of collective.h, each enqueued on a stream and asynchronous
// to the host. A group serves one stream at a time: for a second stream that is not ordered by events make a
// duplicate(). Sums are taken in rank order, in fp32 for fp32 and bf16 (rounded once) and in fp64 for fp64, so every
// implementation gives the same bits on every rank; NCCL alone has an order of its own (nccl_communicator.h).
// Implementations: mpi_runtime.h (processes), nccl_communicator.h (processes with a GPU each), single_communicator.h
// (one rank), plan_communicator.h (any size, on plan streams only); tests have one of ranks as threads.
// Errors: exit code 9 for a call that is wrong in itself, 7 when a peer made another call, failed, was lost or did not
// come in time.
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

// What a group did so far, for tests and reports: an ignored flag cannot claim to have communicated.
struct CommunicatorStats {
  std::int64_t collectives = 0;  // of more than one rank, sends and receives included; each replay counts again
  std::int64_t bytes = 0;        // payload this rank put in
  // Of ExchangeRows, `bytes` is what went to other ranks where the host runs the calls, else what was expected. How
  // they went, by calls:
  std::int64_t messages = 0;  // of as many rows as there were; of CPU ranks
  std::int64_t pulled = 0;    // read by the GPUs of the targets
  std::int64_t padded = 0;    // in equal parts through NCCL
  // On GPUs, by the communicator that NCCL has for graphs: rehearsed, and each call of each replay.
  std::int64_t graph_calls = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return name_; }  // of the mesh axis: "dp"
  CommunicatorStats stats() const;
  FlightRecorder& recorder() const { return *recorder_; }

  // For launch().
  void enqueue(Stream& stream, Collective collective);

  // Host control plane: blocking, small, for start-up, checkpoints and errors; separate from the streams' traffic.
  // Called by one thread per rank, in the same sequence on all ranks.
  virtual void host_barrier() = 0;
  virtual std::vector<std::string> host_all_gather(const std::string& mine) = 0;
  virtual bool host_any(bool mine) = 0;  // true on every rank when it is true on one
  // One value of each rank, by rank; T holds no pointers.
  template <class T>
  requires(std::is_trivially_copyable_v<T>) std::vector<T> host_gather(const T& mine);
  std::string host_broadcast(const std::string& value, int root);

  // A group of those ranks that pass the same color >= 0, ordered by key; collective over this group.
  virtual std::unique_ptr<Communicator> split(int color, int key, const std::string& name) = 0;
  // A group of `ranks` of this group (this rank among them, every rank in exactly one list); collective over this
  // group.
  virtual std::unique_ptr<Communicator> subgroup(std::span<const int> ranks, const std::string& name);
  // The same ranks once more, for use on another stream; collective over this group.
  std::unique_ptr<Communicator> duplicate(const std::string& name);

  // Where captured calls go another way than eager ones: while `on`, eager calls go it too, and set it up, since in a
  // capture the host should not wait for peers. Once for each kind of call is enough; all ranks alike. Whether it is
  // so.
  virtual bool rehearse_captures(bool /*on*/) { return false; }

  // Whether another group of this size gives the same addends the same bits.
  virtual bool sums_in_rank_order() const { return true; }

  // Null where the ranks cannot read each other's memory.
  virtual MemorySharing* memory_sharing() { return nullptr; }

  // This rank failed: calls that wait, or come later, on any group of its world throw Error (exit code 7) with
  // `message`. With ranks as threads that holds for all ranks; with processes for this one, whose main then ends the
  // others by MpiRuntime::abort. From any thread.
  virtual void abort(const std::string& message) = 0;

 protected:
  Communicator(std::string name, int rank, int size)
      : name_(std::move(name)), rank_(rank), size_(size), recorder_(std::make_shared<FlightRecorder>(name_)) {}
  const std::shared_ptr<FlightRecorder>& shared_recorder() const { return recorder_; }

  // Runs a checked collective on a CPU stream's worker, blocking it until complete.
  virtual void run(const Collective& collective) = 0;
  // Enqueues it on a CUDA stream, which may capture. An error here, for groups that serve none.
  virtual void run(Stream& stream, CudaStream& cuda, const Collective& collective);
  // On a worker: what an ExchangeRows has sent to other ranks.
  void count_sent(std::int64_t bytes);
  // While run() enqueues on a CUDA stream: how an ExchangeRows goes, each time it runs.
  void count_path(Stream& stream, std::int64_t CommunicatorStats::*path);
  // It was announced on a plan stream, whose timeline ends with it. `bytes` as CommunicatorStats counts them.
  virtual void on_plan(Stream& stream, const Collective& collective, std::int64_t bytes);

 private:
  std::string name_;
  int rank_;
  int size_;
  CommunicatorStats stats_;                // of the host
  std::atomic<std::int64_t> messages_{0};  // of the worker, as the bytes that it alone knows
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

// As launch() of core/ops/op.h.
template <class Op>
requires(is_one_of<Op>(static_cast<Collective*>(nullptr))) void launch(Stream& stream, const Op& op) {
  op.group.enqueue(stream, op);
}

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
