// How a GPT becomes a tensor-parallel one: its factories, and what its sizes must be.
#pragma once

#include "core/model/gpt.h"
#include "parallel/tensor_parallel/tensor_group.h"

namespace megalith {

// For build_gpt; of one rank for a group of one. `group` outlives the model.
GptFactories tensor_parallel_factories(const ModelConfig& config, TensorGroup& group);

// Exit code 2 for sizes that do not divide, naming the flags and values that would fit. `config` is resolved.
void check_tensor_parallel(const ModelConfig& config, std::int64_t size, bool sequence_parallel);

}  // namespace megalith
