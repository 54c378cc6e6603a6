// How a GPT becomes a context-parallel one: its core attention, and what its sizes must be.
#pragma once

#include "core/model/gpt.h"
#include "parallel/context_parallel/context_communication.h"

namespace megalith {

struct ContextGroup;

// For GptFactories::core_attention; none, the attention of one rank, for a group of one. `group` outlives the model.
CoreAttentionFactory context_parallel_attention(ContextCommunication communication, ContextGroup& group);

// Exit code 2 for sizes that do not divide, naming the flags and values that would fit. `config` is resolved.
struct ContextParallelSizes {
  std::int64_t context = 1;
  std::int64_t tensor = 1;
  bool sequence_parallel = false;
  ContextCommunication communication = ContextCommunication::kP2p;
};
void check_context_parallel(const ModelConfig& config, const ContextParallelSizes& sizes);

}  // namespace megalith
