// State that a CUDA stream carries for the graph that captures it, and for the backends of ops.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>

namespace megalith {

// Facts that a CUDA op reports to the capturing graph, in addition to its announcement.
struct CaptureNotes {
  bool wanted = false;  // a graph captures the stream
  // Announced workspaces of which the op touches only the first N bytes.
  std::map<const void*, std::size_t> touched;
  // The op waits for other ranks, so that its enqueue order must be the same on all ranks: the graph stays a chain.
  bool meets_ranks = false;

  // An op may use one workspace several times.
  void touches(const void* workspace, std::size_t bytes) {
    std::size_t& most = touched[workspace];
    most = std::max(most, bytes);
  }
};

class GemmAlgorithms;   // core/ops/gemm
struct AttentionPlans;  // core/ops/attention
namespace cuda {
class TensorMaps;  // moe/ops/grouped_gemm
}

struct CudaStreamState {
  CaptureNotes capture;
  // Kept from call to call, created at first use, destroyed ahead of the stream's library handles.
  std::shared_ptr<GemmAlgorithms> gemm_algorithms;
  std::shared_ptr<AttentionPlans> attention_plans;
  std::shared_ptr<const cuda::TensorMaps> tensor_maps;
};

}  // namespace megalith
