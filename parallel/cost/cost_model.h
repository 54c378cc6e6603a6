// How long ops, collectives and messages take on a machine whose rates are known: by themselves, and on a shared link.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "core/instruments/access.h"
#include "parallel/comm/plan_communicator.h"
#include "parallel/cost/rates.h"

namespace megalith {

// Bytes that each rank of a ring sends: of an all-reduce 2 (n - 1) / n of the buffer, of a reduce-scatter and an
// all-gather (n - 1) / n of the whole, and the payload of sends, broadcasts and all-to-alls, whose rows are mostly for
// others. `bytes` as CommunicatorStats counts them.
double ring_bytes(std::string_view kind, double bytes, int ranks);
double ring_bytes(const PlannedCall& call);  // of rows in equal parts, what fills these up too

// How long an op or a collective takes on a machine whose rates are known (rates.h). Each op takes a kernel's time and
// what an op of its name takes however little there is to do. To that a product of matrices adds its FLOPs at the rate
// of its size, and the traffic of what is fused into it, but at least the traffic of all its memory; attention its
// FLOPs at the rate of its heads' width and length; copies between device and host take their link's rate, anything
// else its bytes at the memory's. Collectives take their ring's traffic; gradients' and weights' beside other kernels
// at the lower rate that is left to them. Sharded units are copied within a host, and their gradients' copies summed in
// one pass; over hosts they are collectives. Exchanged rows go straight to their ranks: to those of other hosts at the
// network's rate, and beside them within the host, where kernels read them out of each other's memory unless they are
// padded, which packs them into equal parts before and takes them out behind.
class CostModel {
 public:
  // Of heads of `width` over sequences of `length`. `rates` outlives the model.
  struct Heads {
    double width = 0;
    double length = 0;
  };
  // `ranks` of the run, of which those of a host share its memory's links.
  CostModel(const Rates& rates, const Heads& heads, int ranks = 1) : rates_(rates), heads_(heads), ranks_(ranks) {}

  double seconds(const Access& op, bool in_graph = false) const;
  // Of an op that copies between device and host.
  double link_seconds(const Access& op, bool to_host) const;
  // `beside`: other kernels run at the same time.
  double seconds(const PlannedCall& call, bool beside = false) const;
  struct UnitSeconds {
    double link = 0;
    double sum = 0;     // of copies: kernels, beside later ones
    double behind = 0;  // of these, what comes after the last copy
  };
  // Of kUnshard or kReduceShard, whose copies of the peers' gradients have `sum_room` bytes.
  UnitSeconds unit_seconds(const PlannedCall& call, std::size_t sum_room) const;
  bool is_within_host(const PlannedCall& call) const { return hosts_of(*call.ranks) <= 1; }
  // Of a message from one rank of the world to another.
  double transfer_seconds(std::size_t bytes, int from, int to) const;
  const Rates& rates() const { return rates_; }

 private:
  double arithmetic_seconds(const Cost& cost) const;
  int hosts_of(const std::vector<int>& ranks) const;  // of a group's, ascending
  // Of such a group: within a host, or over hosts, each of which has as many of them.
  Rates::Link link(const std::vector<int>& ranks) const;
  double exchange_seconds(const PlannedCall& call) const;

  const Rates& rates_;
  Heads heads_;
  int ranks_;
};

// A link over which several lanes send at the same time: who was first enqueued has what it takes alone, others what is
// left.
class SharedLink {
 public:
  explicit SharedLink(double left) : left_(left) {}  // of one's rate

  // Of a transfer that begins at `begin` and takes `seconds` alone. `slowed`: the share of the seconds that products
  // at the same time cost.
  double end_of(double begin, double seconds, std::size_t lane, double slowed);

  // Nothing is computed from `from` to `to`: a lane's transfers have the link's whole rate then. How much sooner the
  // last one of the lane ends.
  double catch_up(std::size_t lane, double from, double to);

 private:
  struct Span {
    double begin = 0, end = 0;
    std::size_t lane = 0;
    double slowed = 0;
  };

  double left_;
  std::vector<Span> spans_;  // by begin
};

}  // namespace megalith
