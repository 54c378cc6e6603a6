// Options of recomputation, loss chunks and CUDA graphs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model/layer_recompute.h"

namespace megalith {

enum class CudaGraphImpl { kNone, kLocal, kTransformerEngine, kFullIteration };  // the last value is rejected

// Options of what a step keeps, recomputes and captures.
struct MemoryOptions : RecomputeOptions {
  std::int64_t loss_chunk_size = 0;  // tokens per chunk of output layer and loss; 0: all at once
  CudaGraphImpl cuda_graph_impl = CudaGraphImpl::kNone;
  std::vector<std::string> cuda_graph_modules;  // attn, mlp, layer; resolved: not empty
  std::int64_t cuda_graph_warmup_steps = 1;     // eager steps ahead of the first capture
};

}  // namespace megalith
