// What a CUDA stream carries for others than itself: the graph that captures it, and the backends of ops.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>

namespace megalith {

// What an op of the CUDA backend tells the graph that captures it, beyond what it announced.
struct CaptureNotes {
  bool wanted = false;  // a graph captures the stream
  // Announced workspaces, of which the op touches only the first so many bytes.
  std::map<const void*, std::size_t> touched;
  // The op waits for other ranks, which have to enqueue what they wait for in one order: the graph stays a chain.
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
  // Kept from call to call, made at first use, gone before the stream's library handles.
  std::shared_ptr<GemmAlgorithms> gemm_algorithms;
  std::shared_ptr<AttentionPlans> attention_plans;
  std::shared_ptr<const cuda::TensorMaps> tensor_maps;
};

}  // namespace megalith
