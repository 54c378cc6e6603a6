#include "core/device/cuda_graph.h"

#include "core/base/error.h"
#include "core/device/cuda/check.h"
#include "core/device/cuda_memory.h"

namespace megalith {

CudaGraph::~CudaGraph() {
  // A launch in flight keeps what it needs.
  if (executable_ != nullptr) log_cuda(cudaGraphExecDestroy(executable_), "cudaGraphExecDestroy");
}

void CudaGraph::begin(CudaStream& origin) {
  MEGALITH_CUDA_CHECK(cudaStreamBeginCapture(origin.handle(), cudaStreamCaptureModeThreadLocal));
}

void CudaGraph::record(CudaStream& stream, std::uint64_t id) { events_[id].record(stream); }

void CudaGraph::wait(CudaStream& stream, std::uint64_t id) { events_.at(id).wait(stream); }

std::uint64_t CudaGraph::tail(CudaStream& stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaGraphNode_t* nodes = nullptr;
  const cudaGraphEdgeData* edges = nullptr;
  std::size_t count = 0;
  MEGALITH_CUDA_CHECK(cudaStreamGetCaptureInfo(stream.handle(), &status, nullptr, nullptr, &nodes, &edges, &count));
  if (status == cudaStreamCaptureStatusInvalidated) {
    fail({.subject = "a CUDA capture",
          .expected = "only work that a graph can hold",
          .got = "a call before this one that ended it: an allocation, a host wait, or work on another stream",
          .remedy = "run the op once before the capture, so that libraries set themselves up outside of it"});
  }
  std::uint64_t hash = 0;
  for (std::size_t i = 0; status == cudaStreamCaptureStatusActive && i < count; ++i) {
    hash = hash * 0x9E3779B97F4A7C15u + reinterpret_cast<std::uintptr_t>(nodes[i]);
  }
  return hash;
}

void CudaGraph::end(CudaStream& origin) {
  cudaGraph_t graph = nullptr;
  MEGALITH_CUDA_CHECK(cudaStreamEndCapture(origin.handle(), &graph));
  events_.clear();
  cudaError_t status = cudaGraphGetNodes(graph, nullptr, &num_nodes_);
  const std::size_t before = cuda_memory().free;
  if (status == cudaSuccess && num_nodes_ > 0) status = cudaGraphInstantiate(&executable_, graph, 0);
  log_cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
  check_cuda(status, "cudaGraphInstantiate");
  if (executable_ != nullptr) MEGALITH_CUDA_CHECK(cudaGraphUpload(executable_, origin.handle()));
  const std::size_t after = cuda_memory().free;
  device_bytes_ = before > after ? before - after : 0;  // another process may have freed
}

void CudaGraph::abort(CudaStream& origin) noexcept {
  // Fails for a capture that is broken or whose forks are not joined, and ends it all the same.
  cudaGraph_t graph = nullptr;
  static_cast<void>(cudaStreamEndCapture(origin.handle(), &graph));
  static_cast<void>(cudaGetLastError());
  if (graph != nullptr) log_cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
  events_.clear();
}

void CudaGraph::launch(CudaStream& stream) {
  if (executable_ != nullptr) MEGALITH_CUDA_CHECK(cudaGraphLaunch(executable_, stream.handle()));
}

}  // namespace megalith
