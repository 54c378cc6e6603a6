#pragma once

#include <cstdint>

namespace megalith {

// How ranks that share sequences see each other's keys, by Megatron-LM's names: p2p is the ring, a2a the all-to-all of
// heads; all_gather collects keys and values first.
enum class ContextCommunication : std::uint8_t { kP2p, kAllToAll, kAllGather };

}  // namespace megalith
