// Which storages of a stage could leave the device between forward and backward, found in the recording of a plain
// step: what the stashes keep, how large it is, and which actions touch it.
#pragma once

#include <string>
#include <vector>

#include "core/instruments/timeline.h"
#include "core/memory/arena.h"
#include "offload/slots.h"
#include "parallel/pipeline_parallel/schedule.h"

namespace megalith {

struct OffloadCandidate {
  OffloadSlot slot;
  // What its views are kept as, each once. Most of them are of slot.kind and slot.layer.
  struct View {
    SlotKind kind = SlotKind::kOther;
    std::int64_t layer = -1;
    friend bool operator==(const View&, const View&) = default;
  };
  std::vector<View> views;
  std::string stays = {};  // why it cannot leave; empty: it can
  // In at least half of the microbatches no layer's verb, but those of its own layer and microbatch, stands between its
  // last reader in forward and its first in backward.
  bool straight_back = false;
};

inline constexpr const char* kNeverOffload = "a layer marks it never to be offloaded";  // of OffloadCandidate::stays

// A step on the plan backend.
struct OffloadRecording {
  const Arena& arena;
  const Timeline& timeline;
  const std::vector<Action>& actions;
  const std::vector<std::size_t>& entries;  // where in the timeline each action begins
  bool between_layers = false;              // where the actions of slots are to stand, as OffloadPoints
};

struct SegmentName {
  std::string name;
  std::int64_t layer = -1;
};

// In the order in which forward is done with them, chunk after chunk; without what is kept as SlotKind::kOther alone.
// Microbatches of a chunk that differ in a storage are an error with exit code 9 that names it.
std::vector<OffloadCandidate> find_candidates(const OffloadRecording& recording,
                                              const std::vector<SegmentName>& segments);

}  // namespace megalith
