// Search for storages that could leave the device between forward and backward, in the recording of a plain step. The
// recording lists what the stashes keep, its size and the actions that access it.
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
  // Distinct kinds and layers of its views. Most views have slot.kind and slot.layer.
  struct View {
    SlotKind kind = SlotKind::kOther;
    std::int64_t layer = -1;
    friend bool operator==(const View&, const View&) = default;
  };
  std::vector<View> views;
  std::string stays = {};  // reason why it cannot leave; empty: it can leave
  // In at least half of the microbatches, no verb of another layer or microbatch lies between its last forward and
  // first backward reader.
  bool straight_back = false;
};

inline constexpr const char* kNeverOffload = "its layer marks it never_offload";  // value of OffloadCandidate::stays

// A recorded step on the plan backend.
struct OffloadRecording {
  const Arena& arena;
  const Timeline& timeline;
  const std::vector<Action>& actions;
  const std::vector<std::size_t>& entries;  // timeline position at which each action begins
  bool between_layers = false;              // as in OffloadPoints
};

struct SegmentName {
  std::string name;
  std::int64_t layer = -1;
};

// Returns the candidates by chunk, and by their last reader in forward. Storages kept only as SlotKind::kOther are left
// out. If microbatches of a chunk differ in a storage, fails with exit code 9 and reports the storage.
std::vector<OffloadCandidate> find_candidates(const OffloadRecording& recording,
                                              const std::vector<SegmentName>& segments);

}  // namespace megalith
