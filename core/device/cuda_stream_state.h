// What a CUDA stream carries for others than itself: the graph that captures it, and the backends of ops.
#pragma once

#include <memory>

#include "core/device/capture_notes.h"

namespace megalith {

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
