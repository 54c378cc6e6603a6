// What of a stage's kept activations moves to the host, and what stays, with the reasons.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "offload/slots.h"
#include "offload/stats.h"

namespace megalith {

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
