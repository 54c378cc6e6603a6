// Setup of context parallelism for a GPT: its core attention, and checks of its sizes.
#pragma once

#include "core/model/gpt.h"
#include "parallel/context_parallel/context_communication.h"

namespace megalith {

struct ContextGroup;

// Factory for GptFactories::core_attention; empty for a group of one rank. `group` outlives the model.
CoreAttentionFactory context_parallel_attention(ContextCommunication communication, ContextGroup& group);

// Exit code 2 for sizes that do not divide; the error lists the flags and valid values. `config` is resolved.
struct ContextParallelSizes {
  std::int64_t context = 1;
  std::int64_t tensor = 1;
  bool sequence_parallel = false;
  ContextCommunication communication = ContextCommunication::kP2p;
};
void check_context_parallel(const ModelConfig& config, const ContextParallelSizes& sizes);

}  // namespace megalith
