#pragma once

#include <cstdint>

namespace megalith {

// Methods by which context-parallel ranks access each other's keys, with Megatron-LM's names. p2p: ring; a2a:
// all-to-all of heads; all_gather: gathers keys and values first.
enum class ContextCommunication : std::uint8_t { kP2p, kAllToAll, kAllGather };

}  // namespace megalith
