// Slots: storages of a stage that leave the device between forward and backward. A storage is one arena allocation, the
// same in each column of its chunk. Stashes hold views of it. Candidates are found in a recording (candidates.h),
// chosen (policy.h), given actions (lowering.h) and moved (transfer.h).
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
  int chunk = 0;  // chunk whose stashes hold it and whose columns allocate it
  // Arena key without the column. segment -1: received from another stage, and `verb` is a StepScope.
  int segment = -1;
  int verb = 0;
  int ordinal = 0;
  std::size_t bytes = 0;  // of the storage, a multiple of 256
  SlotKind kind = SlotKind::kOther;
  std::vector<SlotKind> kinds = {};  // kinds of all its views
  std::int64_t layer = -1;           // index in the model
  bool bounded = false;              // some views hold a bounded number of expert rows
  std::int64_t sure_rows = 0;        // leading rows of a bounded slot that a copy engine always copies, used or not
  // Verbs of this chunk. Only the send of its output, after its last verb, also reads the storage. `last_writer`: last
  // verb that writes it; none does in backward. Bounded slots that leave within their layer: not before the last save
  // of a view, when the row count is known. A verb that saves a view is a reader.
  SlotVerb last_writer, last_forward_reader, first_backward_reader;
  std::string name;          // "layer 3 attention: core_attn"
  int lag = -1, ahead = -1;  // override OffloadPoints if not -1

  ArenaKey key(int column) const {
    return {.scope = {.column = column, .segment = segment, .verb = verb}, .ordinal = ordinal};
  }
};

// Slots of one stage and the distances of their actions.
struct OffloadPoints {
  std::vector<OffloadSlot> slots;     // slots that move; actions refer to the index as `item`
  std::vector<int> layer_of_segment;  // layer of each segment
  int lag = 1;                        // layers from the last forward reader to wait_offload
  int ahead = 1;                      // layers from reload to the first backward reader
  // Places actions only between layers, so that a graph holds complete layers. Copies to the host start inside of
  // graphs.
  bool between_layers = false;
  bool in_pieces = false;  // exchanges split the layers, and actions stand between the pieces
  bool empty() const { return slots.empty(); }
};

// Arena scope of a reload, instead of the verb: kReloadScope + item.
inline constexpr std::int32_t kReloadScope = 1 << 16;
// Scope in the host's arena: kOffloadScope + item, with segment -1.
inline constexpr std::int32_t kOffloadScope = 1 << 17;

}  // namespace megalith
