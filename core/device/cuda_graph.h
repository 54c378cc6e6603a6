// CUDA's half of Graph: the capture of a stream and of those that join it, the executable graph, its launch. Graph
// keeps the books that are the same on every backend. Needs no CUDA header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "core/device/cuda_event.h"

namespace megalith {

class CudaGraph {
 public:
  CudaGraph() = default;
  ~CudaGraph();
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  // Thread-local mode: what this thread does meanwhile and CUDA forbids (allocating, blocking) fails and ends the
  // capture; other threads of the process, i.e. other ranks, are not disturbed.
  void begin(CudaStream& origin);
  // Events inside the graph are the graph's own, so that the caller's Event keeps its latest record outside.
  void record(CudaStream& stream, std::uint64_t id);
  void wait(CudaStream& stream, std::uint64_t id);
  // Changes with everything that is captured on the stream; 0 before the first node.
  static std::uint64_t tail(CudaStream& stream);
  void end(CudaStream& origin);             // also makes the executable graph and uploads it
  void abort(CudaStream& origin) noexcept;  // drops what was captured
  void launch(CudaStream& stream);          // does nothing for a graph without nodes

  std::size_t num_nodes() const { return num_nodes_; }        // kernels, copies, fills and external events
  std::size_t device_bytes() const { return device_bytes_; }  // less was free behind end() than before

 private:
  [[maybe_unused]] CUgraphExec_st* executable_ = nullptr;  // without CUDA
  std::size_t num_nodes_ = 0;
  std::size_t device_bytes_ = 0;
  std::map<std::uint64_t, CudaEvent> events_;  // while capturing
};

}  // namespace megalith
