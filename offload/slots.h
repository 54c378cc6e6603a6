// What leaves the device between forward and backward: whole storages of a stage. A storage is one allocation of the
// arena, the same in each column of its chunk, whatever views of it the stashes hold. Candidates are found in a
// recording (candidates.h), chosen (policy.h), get their actions (lowering.h) and are moved (transfer.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/layers/stash.h"
#include "core/memory/arena.h"
#include "parallel/pipeline_parallel/schedule.h"

namespace megalith {

// A verb of a segment, in each microbatch.
struct SlotVerb {
  ActionKind kind = ActionKind::kForward;
  int segment = -1;
  friend bool operator==(const SlotVerb&, const SlotVerb&) = default;
};

struct OffloadSlot {
  int chunk = 0;  // whose stashes hold it, in whose columns it was allocated
  // The arena's key less its column; segment -1: received from another stage, `verb` is then a StepScope.
  int segment = -1;
  int verb = 0;
  int ordinal = 0;
  std::size_t bytes = 0;  // of the storage, a multiple of 256
  SlotKind kind = SlotKind::kOther;
  std::vector<SlotKind> kinds = {};  // of all its views
  std::int64_t layer = -1;           // of the whole model
  bool bounded = false;              // some of its views are: rows of experts
  std::int64_t sure_rows = 0;        // of a bounded one's those that a copy engine takes, in use or not
  // Verbs of this chunk; no other action but the send of the chunk's output, behind its last verb, touches it. The
  // writer is the last one that writes it, which none does in backward, and of a bounded one that leaves within its
  // layer not before the last that saves a view, as stashes tell only then how many rows are in use. Who saves a view
  // of it counts as a reader.
  SlotVerb last_writer, last_forward_reader, first_backward_reader;
  std::string name;          // "layer 3 attention: core_attn"
  int lag = -1, ahead = -1;  // in place of those of OffloadPoints; -1: theirs

  ArenaKey key(int column) const {
    return {.scope = {.column = column, .segment = segment, .verb = verb}, .ordinal = ordinal};
  }
};

// Of one stage.
struct OffloadPoints {
  std::vector<OffloadSlot> slots;     // that move; the place here is the `item` of their actions
  std::vector<int> layer_of_segment;  // segments of one layer have the same
  int lag = 1;                        // layers between a slot's last forward reader and the wait for its copy
  int ahead = 1;                      // layers before its first backward reader when it starts to come back
  // Their actions stand between layers alone, so that graphs hold whole ones; inside of these copies to the host start.
  bool between_layers = false;
  bool empty() const { return slots.empty(); }
};

// Arena scopes of what comes back, in place of the verb: kReloadScope + item.
inline constexpr std::int32_t kReloadScope = 1 << 16;
// Of the host's arena: the segment is -1.
inline constexpr std::int32_t kOffloadScope = 1 << 17;

}  // namespace megalith
