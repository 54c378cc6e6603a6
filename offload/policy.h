// Choice of the candidates that leave the device, and reasons why the others stay. No device, no flags.
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
  StashPolicies policies;  // kinds to move have kOffload
  // Replaces `policies`: all kinds are eligible, and the forecast selects those without stalls (placement.h).
  bool by_forecast = false;
  // A group is a layer's storages of one kind. Of a chunk's n groups the last int(n (1 - fraction)) stay, as in
  // Megatron-LM.
  double fraction = 1;
  std::size_t max_bytes_of_layer = 0;  // per microbatch; 0: no limit
  std::size_t min_bytes = 1 << 20;     // smaller storages stay
};

inline constexpr const char* kNotAskedFor = "not in --offload-modules";  // value of OffloadChoice::reason

struct OffloadChoice {
  bool moves = false;
  std::string reason;  // why it stays; empty if it moves
};

// Returns one choice for each candidate.
std::vector<OffloadChoice> choose_offloads(const std::vector<OffloadCandidate>& candidates,
                                           const OffloadRequest& request);

// Sets `lag` or `ahead` to 0 if other segments of the slot's layer follow its last forward or precede its first
// backward reader. The copy then stays within the layer, so its memory is free for longer.
void tighten(OffloadSlot& slot, const OffloadPoints& points);

// Slots that move, in the order of the candidates.
std::vector<OffloadSlot> moving(const std::vector<OffloadCandidate>& candidates,
                                const std::vector<OffloadChoice>& choices);

// Result for a stage: activations that move to the host, and those that stay, with the reasons.
struct OffloadChosen {
  OffloadPoints points;
  // Slots of one kind with the same choice and reason, in the order of kinds; slots that move come first.
  struct Row {
    SlotKind kind = SlotKind::kOther;
    std::string reason;  // why they stay; empty if they move
    std::vector<std::int64_t> layers = {};
    std::int64_t slots = 0;
    std::size_t bytes = 0;  // total per microbatch
  };
  std::vector<Row> rows = {};
  double used_bytes = 0;                      // bytes per microbatch that the moving slots use, if some rows are unused
  std::optional<OffloadStats> forecast = {};  // times per microbatch, with --rates
  // Bytes of a step that keeps all activations, as in ArenaPlan.
  std::size_t kept_live_bytes = 0;
  std::size_t kept_peak_bytes = 0;
};

}  // namespace megalith
