// How long an op or a collective takes on a machine whose rates are known (rates.h). A product of matrices takes
// its FLOPs at the rate of its size, and the traffic of what is fused into it; attention its FLOPs at the rate of its
// heads' width and length; anything else its bytes at the memory's rate. Collectives take their ring's traffic.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "apps/rates.h"
#include "core/device/access.h"
#include "parallel/comm/plan_communicator.h"

namespace megalith {

// Bytes that each rank of a ring sends: of an all-reduce 2 (n - 1) / n of the buffer, of a reduce-scatter and an
// all-gather (n - 1) / n of the whole, and the payload of sends, broadcasts and all-to-alls, whose rows are mostly for
// others. `bytes` as CommunicatorStats counts them.
double ring_bytes(std::string_view kind, double bytes, int ranks);

class CostModel {
 public:
  // Of heads of `width` over sequences of `length`. `rates` outlives the model.
  struct Heads {
    double width = 0;
    double length = 0;
  };
  CostModel(const Rates& rates, const Heads& heads) : rates_(rates), heads_(heads) {}

  double seconds(const Access& op) const;
  double seconds(const PlannedCall& call) const;
  // Of a message from one rank of the world to another.
  double transfer_seconds(std::size_t bytes, int from, int to) const;
  const Rates& rates() const { return rates_; }

 private:
  double arithmetic_seconds(const Cost& cost) const;
  // Of a group of ranks, ascending: within a host, or over hosts, each of which has as many of them.
  Rates::Link link(const std::vector<int>& ranks) const;

  const Rates& rates_;
  Heads heads_;
};

}  // namespace megalith
