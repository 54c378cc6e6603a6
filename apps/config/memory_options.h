// Recomputation, chunks of the loss and CUDA graphs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megalith {

enum class RecomputeGranularity { kNone, kSelective, kFull };
enum class RecomputeMethod { kUniform, kBlock };
enum class CudaGraphImpl { kNone, kLocal, kTransformerEngine, kFullIteration };  // the last one is refused

// What of a step is kept, recomputed and captured.
struct MemoryOptions {
  RecomputeGranularity recompute_granularity = RecomputeGranularity::kNone;
  RecomputeMethod recompute_method = RecomputeMethod::kUniform;  // with kFull
  // uniform: layers per chunk; block and selective: layers of each part that are recomputed; 0: 1, with selective all
  std::int64_t recompute_num_layers = 0;
  std::vector<std::string> recompute_modules;  // with kSelective: core_attn, layernorm, mlp, mlp_act
  std::int64_t loss_chunk_size = 0;  // tokens that the output layer and the loss take at a time; 0: all at once
  CudaGraphImpl cuda_graph_impl = CudaGraphImpl::kNone;
  std::vector<std::string> cuda_graph_modules;  // attn, mlp, layer; resolved: not empty
  std::int64_t cuda_graph_warmup_steps = 1;     // before anything is captured
};

}  // namespace megalith
