// Durations of ops, collectives and messages on a machine with known rates, alone and on a shared link.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "core/instruments/access.h"
#include "parallel/comm/plan_communicator.h"
#include "parallel/cost/rates.h"

namespace megalith {

// Bytes that each rank of a ring sends. All-reduce: 2 (n - 1) / n of the buffer. Reduce-scatter and all-gather: (n - 1)
// / n of the unsharded tensor. Sends, broadcasts and all-to-alls: the payload. `bytes` is as in CommunicatorStats.
double ring_bytes(std::string_view kind, double bytes, int ranks);
double ring_bytes(const PlannedCall& call);  // includes the padding of equal parts

// Durations of ops and collectives by the machine's rates (rates.h). Each op costs a kernel's time and the start time
// of its name. A GEMM adds its FLOPs at the rate of its size and its fused traffic, but at least all its memory
// traffic. Attention adds its FLOPs at the rate of its head width and length. Host copies use their link's rate, and
// other ops the memory's rate. Collectives use their ring traffic. Gradients and weights concurrent with kernels use
// the lower busy rate. Sharded units are copied within a host, and their gradients' copies summed in one pass; over
// hosts they are collectives. Exchanged rows use the network's rate to other hosts, concurrently with the host's rate
// within it. Kernels read rows from peers, unless rows are padded; then packing and unpacking are added.
class CostModel {
 public:
  // Attention heads of `width`, over sequences of `length`. `rates` outlives the model.
  struct Heads {
    double width = 0;
    double length = 0;
  };
  // `ranks` of the run; ranks of a host share its memory links.
  CostModel(const Rates& rates, const Heads& heads, int ranks = 1) : rates_(rates), heads_(heads), ranks_(ranks) {}

  double seconds(const Access& op, bool in_graph = false) const;
  // Seconds of an op that copies between device and host.
  double link_seconds(const Access& op, bool to_host) const;
  // `concurrent`: other kernels run concurrently.
  double seconds(const PlannedCall& call, bool concurrent = false) const;
  struct UnitSeconds {
    double link = 0;
    double sum = 0;   // sums of copies by kernels, concurrent with later copies
    double tail = 0;  // part of `sum` after the last copy
  };
  // Seconds of kUnshard or kReduceShard. `sum_room`: bytes for copies of the peers' gradients.
  UnitSeconds unit_seconds(const PlannedCall& call, std::size_t sum_room) const;
  bool is_within_host(const PlannedCall& call) const { return hosts_of(*call.ranks) <= 1; }
  // Seconds of a message between two ranks of the world; a copy engine carries it within a host.
  double transfer_seconds(std::size_t bytes, int from, int to) const;
  const Rates& rates() const { return rates_; }

 private:
  double arithmetic_seconds(const Cost& cost) const;
  int hosts_of(const std::vector<int>& ranks) const;  // of a group's ranks, ascending
  // Link of such a group: within a host, or over hosts with equal numbers of its ranks.
  Rates::Link link(const std::vector<int>& ranks) const;
  double exchange_seconds(const PlannedCall& call) const;

  const Rates& rates_;
  Heads heads_;
  int ranks_;
};

// A link on which several lanes send concurrently. The first enqueued transfer gets its full rate, and others the rest.
class SharedLink {
 public:
  explicit SharedLink(double left) : left_(left) {}  // share of the rate for the others

  // End of a transfer that begins at `begin` and takes `seconds` alone. `slowed`: share of the seconds due to
  // concurrent GEMMs.
  double end_of(double begin, double seconds, std::size_t lane, double slowed);

  // Gives the lane's transfers the full rate from `from` to `to`, when nothing is computed. Returns by how much the
  // lane's last transfer ends earlier.
  double catch_up(std::size_t lane, double from, double to);

 private:
  struct Span {
    double begin = 0, end = 0;
    std::size_t lane = 0;
    double slowed = 0;
  };

  double left_;
  std::vector<Span> spans_;  // sorted by begin
};

}  // namespace megalith
