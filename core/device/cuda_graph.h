// CUDA's half of Graph: the capture of a stream and of those that join it, the executable graph, its launch. Graph
// keeps the books that are the same on every backend. Needs no CUDA header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "core/device/cuda_stream.h"
#include "core/device/lane_plan.h"

struct CUgraphNode_st;  // cudaGraphNode_t points to one

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
  // The op captured last ends with the stream's tail; how many nodes it has.
  std::size_t end_op(CudaStream& stream);
  // Also makes the executable graph and uploads it. `follows`: of each op that ended, those that it follows, instead of
  // the op before; none for a graph that stays as it was captured, as one does that is not a single chain of nodes.
  void end(CudaStream& origin, const Dependencies& follows);
  void abort(CudaStream& origin) noexcept;  // drops what was captured
  void launch(CudaStream& stream);          // does nothing for a graph without nodes

  std::size_t num_nodes() const { return num_nodes_; }        // kernels, copies, fills and external events
  std::size_t device_bytes() const { return device_bytes_; }  // less was free behind end() than before

 private:
  [[maybe_unused]] CUgraphExec_st* executable_ = nullptr;  // without CUDA
  std::size_t num_nodes_ = 0;
  std::size_t device_bytes_ = 0;
  // While capturing:
  std::map<std::uint64_t, CudaEvent> events_;
  std::vector<CUgraphNode_st*> ends_;  // the last node of each op; null if it ends with several
  std::size_t nodes_of_ops_ = 0;
};

}  // namespace megalith
