// Which candidates leave the device, and why the others stay. Pure: no device, no flags.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/layers/stash_policies.h"
#include "offload/candidates.h"
#include "offload/slots.h"
#include "offload/stats.h"

namespace megalith {

struct OffloadRequest {
  StashPolicies policies;  // what is to move is kOffload
  // In place of them: all kinds, of which the forecast then takes what it says is free (placement.h).
  bool by_forecast = false;
  // A kind's storages of a layer are a group; of a chunk's n groups the last int(n (1 - fraction)) stay, as Megatron
  // counts them.
  double fraction = 1;
  std::size_t most_bytes_of_layer = 0;  // of a microbatch; 0: no limit
  std::size_t min_bytes = 1 << 20;      // smaller storages stay
};

inline constexpr const char* kNotAskedFor = "not in --offload-modules";  // a reason

struct OffloadChoice {
  bool moves = false;
  std::string reason;  // why it stays; empty where it moves
};

// One for each candidate.
std::vector<OffloadChoice> choose_offloads(const std::vector<OffloadCandidate>& candidates,
                                           const OffloadRequest& request);

// Copies of a slot within its own layer, wherever another part of the layer stands between: no longer on the device
// than that.
void tighten(OffloadSlot& slot, const OffloadPoints& points);

// The slots that move, in the order of the candidates.
std::vector<OffloadSlot> moving(const std::vector<OffloadCandidate>& candidates,
                                const std::vector<OffloadChoice>& choices);

// What of a stage's kept activations moves to the host, and what stays, with the reasons.
struct OffloadChosen {
  OffloadPoints points;
  // Slots of one kind that share their fate, in the order of kinds; those that move first.
  struct Row {
    SlotKind kind = SlotKind::kOther;
    std::string reason;  // why they stay; empty: they move
    std::vector<std::int64_t> layers = {};
    std::int64_t slots = 0;
    std::size_t bytes = 0;  // of them all, of one microbatch
  };
  std::vector<Row> rows = {};
  double used_bytes = 0;  // of the slots that move, of one microbatch, where some of their rows are not used
  std::optional<OffloadStats> forecast = {};  // times of a microbatch, with --rates
  // Of a step that keeps all: as ArenaPlan.
  std::size_t kept_live_bytes = 0;
  std::size_t kept_peak_bytes = 0;
};

}  // namespace megalith
