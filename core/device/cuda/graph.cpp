#include "core/device/cuda_graph.h"

#include <span>
#include <unordered_map>
#include <unordered_set>

#include "core/base/error.h"
#include "core/device/cuda/check.h"
#include "core/device/cuda_memory.h"

namespace megalith {

CudaGraph::~CudaGraph() {
  // CUDA keeps what a launch in flight needs.
  if (executable_ != nullptr) log_cuda(cudaGraphExecDestroy(executable_), "cudaGraphExecDestroy");
}

void CudaGraph::begin(CudaStream& origin) {
  MEGALITH_CUDA_CHECK(cudaStreamBeginCapture(origin.handle(), cudaStreamCaptureModeThreadLocal));
}

void CudaGraph::record(CudaStream& stream, std::uint64_t id) { events_[id].record(stream); }

void CudaGraph::wait(CudaStream& stream, std::uint64_t id) { events_.at(id).wait(stream); }

namespace {

struct Tail {
  cudaGraph_t graph = nullptr;  // null outside of a capture
  std::span<const cudaGraphNode_t> nodes;
};

Tail tail_of(CudaStream& stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  Tail tail;
  const cudaGraphNode_t* nodes = nullptr;
  const cudaGraphEdgeData* edges = nullptr;
  std::size_t count = 0;
  MEGALITH_CUDA_CHECK(cudaStreamGetCaptureInfo(stream.handle(), &status, nullptr, &tail.graph, &nodes, &edges, &count));
  if (status == cudaStreamCaptureStatusInvalidated) {
    fail({.subject = "a CUDA capture",
          .expected = "only work that a graph can hold",
          .got = "a call before this one that ended it: an allocation, a host wait, or work on another stream",
          .remedy = "run the op once before the capture, to initialize its libraries"});
  }
  if (status != cudaStreamCaptureStatusActive) return {};
  tail.nodes = {nodes, count};
  return tail;
}

struct Link {
  cudaGraphNode_t to;
  cudaGraphEdgeData edge;
};
using Links = std::unordered_map<cudaGraphNode_t, Link>;  // keyed by the node ahead of the link

// Returns the links of the graph; empty if the graph is not one chain.
Links chain_of(cudaGraph_t graph) {
  std::size_t nodes = 0, count = 0;
  MEGALITH_CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
  MEGALITH_CUDA_CHECK(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &count));
  if (count + 1 != nodes) return {};
  std::vector<cudaGraphNode_t> from(count), to(count);
  std::vector<cudaGraphEdgeData> edges(count);
  MEGALITH_CUDA_CHECK(cudaGraphGetEdges(graph, from.data(), to.data(), edges.data(), &count));
  Links next;
  std::unordered_set<cudaGraphNode_t> reached;
  for (std::size_t i = 0; i < count; ++i) {
    if (!next.emplace(from[i], Link{to[i], edges[i]}).second || !reached.insert(to[i]).second) return {};
  }
  return next;
}

// Makes the first node of each op depend on the last nodes of the ops in `follows`, instead of on the preceding op.
void relink(cudaGraph_t graph, const std::vector<cudaGraphNode_t>& ends, const Dependencies& follows) {
  const Links next = chain_of(graph);
  for (std::size_t op = 0; op < ends.size(); ++op) {
    if (ends[op] == nullptr || next.contains(ends[op]) != (op + 1 < ends.size())) return;
  }
  cudaGraphNode_t root = nullptr;
  std::size_t roots = 1;
  MEGALITH_CUDA_CHECK(cudaGraphGetRootNodes(graph, &root, &roots));
  for (std::size_t op = 1; op < ends.size(); ++op) {
    const Link& link = next.at(ends[op - 1]);
    MEGALITH_CUDA_CHECK(cudaGraphRemoveDependencies(graph, &ends[op - 1], &link.to, &link.edge, 1));
  }
  for (std::size_t op = 0; op < ends.size(); ++op) {
    const cudaGraphNode_t first = op == 0 ? root : next.at(ends[op - 1]).to;
    for (const std::size_t other : follows[op]) {
      MEGALITH_CUDA_CHECK(cudaGraphAddDependencies(graph, &ends[other], &first, nullptr, 1));
    }
  }
}

}  // namespace

std::uint64_t CudaGraph::tail(CudaStream& stream) {
  std::uint64_t hash = 0;
  for (const cudaGraphNode_t node : tail_of(stream).nodes) {
    hash = hash * 0x9E3779B97F4A7C15u + reinterpret_cast<std::uintptr_t>(node);
  }
  return hash;
}

std::size_t CudaGraph::end_op(CudaStream& stream) {
  const Tail tail = tail_of(stream);
  ends_.push_back(tail.nodes.size() == 1 ? tail.nodes[0] : nullptr);
  const std::size_t before = nodes_of_ops_;
  MEGALITH_CUDA_CHECK(cudaGraphGetNodes(tail.graph, nullptr, &nodes_of_ops_));
  return nodes_of_ops_ - before;
}

void CudaGraph::end(CudaStream& origin, const Dependencies& follows) {
  cudaGraph_t graph = nullptr;
  MEGALITH_CUDA_CHECK(cudaStreamEndCapture(origin.handle(), &graph));
  events_.clear();
  if (!follows.empty()) relink(graph, ends_, follows);
  ends_.clear();
  cudaError_t status = cudaGraphGetNodes(graph, nullptr, &num_nodes_);
  const std::size_t before = cuda_memory().free;
  if (status == cudaSuccess && num_nodes_ > 0) status = cudaGraphInstantiate(&executable_, graph, 0);
  log_cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
  check_cuda(status, "cudaGraphInstantiate");
  if (executable_ != nullptr) MEGALITH_CUDA_CHECK(cudaGraphUpload(executable_, origin.handle()));
  const std::size_t after = cuda_memory().free;
  device_bytes_ = before > after ? before - after : 0;  // another process may have freed memory
}

void CudaGraph::abort(CudaStream& origin) noexcept {
  // Ends the capture even if it is broken or its forks are not joined; then fails.
  cudaGraph_t graph = nullptr;
  static_cast<void>(cudaStreamEndCapture(origin.handle(), &graph));
  static_cast<void>(cudaGetLastError());
  if (graph != nullptr) log_cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
  events_.clear();
  ends_.clear();
}

void CudaGraph::launch(CudaStream& stream) {
  if (executable_ != nullptr) MEGALITH_CUDA_CHECK(cudaGraphLaunch(executable_, stream.handle()));
}

}  // namespace megalith
