// GPU memory of the ranks of one host, mapped into each of them by CUDA's inter-process handles. A shift between two
// such buffers is a copy that a copy engine of the receiving GPU makes, between words in host memory that the streams'
// front ends write and wait for: it takes no multiprocessor from the products it runs beside, nor waits for one, and is
// legal under capture. Rows whose numbers only the device knows are read by a kernel, which meets those of the others.
// Needs no CUDA header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
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
  // Collective over `host`, of which only the host's calls are used. Null on every rank if one of them cannot map the
  // others' memory: another host, no path between two GPUs, or another size or layout than elsewhere.
  // `state` is of this GPU's memory, for the pulls, and outlives it.
  static std::unique_ptr<PeerMemory> share(Communicator& host, void* base, std::size_t bytes, std::uint64_t layout,
                                           PullMeeting::State* state);
  // As can_share_memory() of nccl_communicator.h.
  static bool can_share(Communicator& host, std::span<const int> ranks);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  bool holds(const Tensor& tensor) const;
  // in, which this memory holds at the same place on all ranks, goes to the rank `step` above; out is anywhere on this
  // GPU. One stream at a time.
  void shift(CudaStream& stream, const Shift& shift);
  // Likewise of `in`. This rank's own part is copied beside the others.
  void all_gather(CudaStream& stream, const SharedAllGather& op);
  // Likewise of `in`. While copy engines bring the parts, no multiprocessor is taken; the sums are a kernel, which runs
  // beside the next copies.
  void reduce_scatter(CudaStream& stream, const SharedReduceScatter& op);
  // Likewise of `in` and `index` of all ranks: the rows that are for this one, by a kernel behind one that meets.
  // Throws where they lie elsewhere:
  void check_holds(const ExchangeRows& op) const;
  void exchange_rows(CudaStream& stream, const ExchangeRows& op);
  // Ends the waits of this moment; called again and again by the watcher of a run that failed, until its streams are
  // empty. From any thread.
  void release();

 private:
  // What a rank's stream waits for, of each peer: not 0 once that peer's message is there; once it has this rank's. And
  // what its pulls wait for.
  struct Flags {
    std::uint64_t ready;
    std::uint64_t taken;
    PullMeeting::Words rows;
  };
  struct Peer {
    std::byte* base = nullptr;  // of its memory, as mapped here
    void* mapped = nullptr;     // the allocation that holds it
    SharedMemory shared;        // that holds its flags; of this rank too
    Flags* flags = nullptr;     // once the GPU may write there: by rank
  };

  // A second stream within a call.
  class Beside;

  PeerMemory(int rank, int ranks, std::byte* base, std::size_t bytes);
  Beside& beside();
  void prepare_pulls(PullMeeting::State* state);
  bool map(int rank, std::uint64_t layout, const PeerOffer& offer);

  int rank_;
  std::byte* base_;
  std::size_t bytes_;
  std::vector<Peer> peers_;  // by rank
  PullMeeting meeting_;
  std::unique_ptr<Beside> beside_;  // null before its first use
};

}  // namespace megalith
