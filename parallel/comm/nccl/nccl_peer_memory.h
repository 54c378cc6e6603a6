// GPU memory of the ranks of one host, mapped into each rank by CUDA's inter-process handles. A copy engine of the
// receiving GPU executes a shift between two such buffers. Streams' front ends write and wait for words in host memory
// around it. So a shift uses no multiprocessor, does not wait for one, and is legal under capture. Kernels read rows
// whose counts only the device knows, and synchronize with the peers' kernels. No CUDA header is required.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/files/shared_memory.h"
#include "core/device/cuda_stream.h"
#include "core/tensor/tensor.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/nccl/nccl_pull.h"

namespace megalith {

struct PeerOffer;

class PeerMemory {
 public:
  // Collective over `host`, of which only host calls are used. Null on every rank if a rank cannot map the others'
  // memory. Reasons are another host, no path between two GPUs, or a different size or layout; without `layout` both
  // may differ. `state`, for the pulls, is in this GPU's memory and outlives the result.
  static std::unique_ptr<PeerMemory> share(Communicator& host, void* base, std::size_t bytes,
                                           std::optional<std::uint64_t> layout, PullMeeting::State* state);
  // Same as can_share_memory() of nccl_communicator.h.
  static bool can_share(Communicator& host, std::span<const int> ranks);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // True for memory of this rank that has the same offset on all ranks.
  bool holds(const Tensor& tensor) const { return is_alike_ && contains(tensor); }
  // Sends `in` to the rank `step` above. This memory holds `in` at the same offset on all ranks; `out` is anywhere on
  // this GPU. One stream at a time.
  void shift(CudaStream& stream, const Shift& shift);
  // The same rules apply to `in`. This rank's own part is copied concurrently with the others.
  void all_gather(CudaStream& stream, const SharedAllGather& op);
  // The same rules apply to `in`. Copy engines fetch the parts without multiprocessors. A kernel sums them,
  // concurrently with the next copies.
  void reduce_scatter(CudaStream& stream, const SharedReduceScatter& op);
  // The same rules apply to `in` and `index` of all ranks. A kernel reads this rank's rows, after a kernel that
  // synchronizes with the peers. check_holds() throws for tensors elsewhere.
  void check_holds(const ExchangeRows& op) const;
  void exchange_rows(CudaStream& stream, const ExchangeRows& op);
  // Messages with a place in the receiver's memory. A copy engine of the sending GPU writes them after the receiver's
  // stream has released the buffer.
  bool holds(const Send& op) const;
  bool holds(const Receive& op) const { return contains(op.buffer); }
  void send(CudaStream& stream, const Send& op);
  void receive(CudaStream& stream, const Receive& op);
  // Ends the current waits. After a failure, the watcher calls it repeatedly until the streams are idle. Callable from
  // any thread.
  void release();

 private:
  // Words per peer that a rank's stream waits for. ready: the peer's message, or its buffer for a message with a place,
  // is available; taken: the copy is complete. `rows` is for pulls.
  struct Flags {
    std::uint64_t ready;
    std::uint64_t taken;
    PullMeeting::Words rows;
  };
  struct Peer {
    std::byte* base = nullptr;  // of the peer's memory, as mapped here
    std::size_t bytes = 0;      // of that memory
    void* mapped = nullptr;     // allocation that contains it
    SharedMemory shared;        // holds the flags; also for this rank
    Flags* flags = nullptr;     // by rank, once the GPU may write there
  };

  // Second stream within a call.
  class SecondStream;

  PeerMemory(int rank, int ranks, std::byte* base, std::size_t bytes, bool is_alike);
  bool contains(const Tensor& tensor) const;
  SecondStream& second_stream();
  void prepare_pulls(PullMeeting::State* state);
  bool map(int rank, std::uint64_t layout, const PeerOffer& offer);

  int rank_;
  std::byte* base_;
  std::size_t bytes_;
  bool is_alike_;            // sizes and offsets are equal on all ranks
  std::vector<Peer> peers_;  // by rank
  PullMeeting meeting_;
  bool pulls_in_bulk_ = false;
  std::unique_ptr<SecondStream> second_stream_;  // null before its first use
};

}  // namespace megalith
