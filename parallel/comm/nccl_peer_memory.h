// GPU memory of the ranks of one host, mapped into each of them by CUDA's inter-process handles. A shift between two
// such buffers is a copy that a copy engine of the receiving GPU makes, between two kernels of one thread that meet the
// peers: it takes no multiprocessor from the products it runs beside, and is legal under capture. Needs no CUDA header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/device/cuda_stream.h"
#include "core/tensor/tensor.h"

namespace megalith {

class Communicator;

class PeerMemory {
 public:
  // Collective over `host`, of whose calls only the host's are used. Null on every rank if one of them cannot map the
  // others' memory: another host, no path between two GPUs, or fewer bytes than elsewhere. `stop` is a pinned word that
  // ends all waits once it is not 0.
  static std::unique_ptr<PeerMemory> share(Communicator& host, void* base, std::size_t bytes,
                                           const std::uint32_t* stop);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  bool holds(const Tensor& tensor) const;
  // in, which this memory holds, to the rank `step` above; out, anywhere on this GPU, from the rank `step` below. One
  // stream at a time. A peer whose `in` lies elsewhere in its memory is an error of the next host wait.
  void shift(CudaStream& stream, const Tensor& in, const Tensor& out, int step);

 private:
  // What a rank's waits look at, one of each for every peer, in its own GPU's memory and written by that peer: where
  // its message lies, plus one, once it is there; and 1 once it has this rank's message. 0 before, and again after.
  struct Flags {
    std::uint64_t ready = 0;
    std::uint64_t taken = 0;
  };
  struct Peer {
    std::byte* base = nullptr;  // of its memory, as mapped here
    Flags* flags = nullptr;     // its, likewise: all ranks', ours among them
    std::vector<void*> mapped;
  };

  PeerMemory(int rank, std::byte* base, std::size_t bytes, const std::uint32_t* stop)
      : rank_(rank), base_(base), bytes_(bytes), stop_(stop) {}

  int rank_;
  std::byte* base_;
  std::size_t bytes_;
  const std::uint32_t* stop_;
  Flags* flags_ = nullptr;
  std::vector<Peer> peers_;  // by rank; this rank's is empty
};

}  // namespace megalith
