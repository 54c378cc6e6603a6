#include "parallel/context_parallel/context_parallel.h"

#include "parallel/context_parallel/context_attention.h"

namespace megalith {

CoreAttentionFactory context_parallel_attention(ContextCommunication communication, ContextGroup& group) {
  if (group.size() == 1) return {};
  return [communication, &group](const CoreAttention::Spec& spec) -> std::unique_ptr<CoreAttention> {
    if (communication == ContextCommunication::kAllToAll) return std::make_unique<AllToAllAttention>(spec, group);
    return std::make_unique<RingAttention>(spec, group, communication == ContextCommunication::kAllGather);
  };
}

}  // namespace megalith
