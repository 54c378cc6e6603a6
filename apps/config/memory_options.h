// Recomputation, chunks of the loss and CUDA graphs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model/layer_recompute.h"

namespace megalith {

enum class CudaGraphImpl { kNone, kLocal, kTransformerEngine, kFullIteration };  // the last one is refused

// What of a step is kept, recomputed and captured.
struct MemoryOptions : RecomputeOptions {
  std::int64_t loss_chunk_size = 0;  // tokens that the output layer and the loss take at a time; 0: all at once
  CudaGraphImpl cuda_graph_impl = CudaGraphImpl::kNone;
  std::vector<std::string> cuda_graph_modules;  // attn, mlp, layer; resolved: not empty
  std::int64_t cuda_graph_warmup_steps = 1;     // before anything is captured
};

}  // namespace megalith
