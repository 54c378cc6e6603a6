// CUDA's part of Graph: capture of a stream and of streams that join it, the executable graph, its launch. Graph does
// the accounting that is equal on all backends. Needs no CUDA header.
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

  // Begins a capture in thread-local mode: a call of this thread that CUDA forbids (allocate, block) fails and ends the
  // capture. Other threads of the process, i.e. other ranks, are not disturbed.
  void begin(CudaStream& origin);
  // Records a graph-internal event, so that the caller's Event keeps its latest record outside.
  void record(CudaStream& stream, std::uint64_t id);
  void wait(CudaStream& stream, std::uint64_t id);
  // Returns a value that changes with each captured node of the stream; 0 ahead of the first node.
  static std::uint64_t tail(CudaStream& stream);
  // Ends the op captured last at the stream's tail. Returns its number of nodes.
  std::size_t end_op(CudaStream& stream);
  // Ends the capture, instantiates and uploads the graph. `follows` lists, for each op, the ops that it depends on
  // instead of the preceding op. If `follows` is empty or the graph is not one chain, the captured order stays.
  void end(CudaStream& origin, const Dependencies& follows);
  void abort(CudaStream& origin) noexcept;  // drops what was captured
  void launch(CudaStream& stream);          // does nothing for a graph without nodes

  std::size_t num_nodes() const { return num_nodes_; }        // kernels, copies, fills and external events
  std::size_t device_bytes() const { return device_bytes_; }  // decrease of free memory during end()

 private:
  [[maybe_unused]] CUgraphExec_st* executable_ = nullptr;  // unused without CUDA
  std::size_t num_nodes_ = 0;
  std::size_t device_bytes_ = 0;
  // Valid while capturing:
  std::map<std::uint64_t, CudaEvent> events_;
  std::vector<CUgraphNode_st*> ends_;  // the last node of each op; null if it ends with several
  std::size_t nodes_of_ops_ = 0;
};

}  // namespace megalith
