#include "apps/cost_model.h"

#include <algorithm>
#include <cmath>

namespace megalith {

double ring_bytes(std::string_view kind, double bytes, int ranks) {
  const double n = ranks;
  if (ranks <= 1) return 0;
  if (kind == "all_reduce") return 2 * (n - 1) / n * bytes;
  if (kind == "reduce_scatter") return (n - 1) / n * bytes;
  if (kind == "all_gather") return (n - 1) * bytes;  // counted by the rank's own part
  return bytes;
}

double CostModel::arithmetic_seconds(const Cost& cost) const {
  if (cost.flops == 0) return 0;
  switch (cost.work) {
    case Work::kMemory: return 0;
    case Work::kMatrixProduct: return cost.flops / rates_.gemm_rate(std::cbrt(cost.flops / 2));
    case Work::kAttentionForward: return cost.flops / rates_.attention_rate(heads_.width, heads_.length).forward;
    case Work::kAttentionBackward: return cost.flops / rates_.attention_rate(heads_.width, heads_.length).backward;
  }
  return 0;
}

double CostModel::seconds(const Access& op) const {
  const Cost cost = op.cost();
  const auto known = cost.work == Work::kMemory ? rates_.kernels.find(op.name()) : rates_.kernels.end();
  const double speed = known != rates_.kernels.end() ? known->second : rates_.memory;
  return rates_.kernel_seconds + (arithmetic_seconds(cost) + cost.bytes / speed);
}

Rates::Link CostModel::link(const std::vector<int>& ranks) const {
  int hosts = 0, last = -1;
  for (const int rank : ranks) {
    const int host = rank / rates_.host_ranks;
    if (host != last) ++hosts;
    last = host;
  }
  if (hosts <= 1) return rates_.host;
  // As many rings as ranks of the group share a host, each of which leaves it by a link of its own.
  const double each = static_cast<double>(ranks.size()) / hosts;
  return {.bandwidth = std::min(rates_.host.bandwidth, each * rates_.network.bandwidth),
          .latency = rates_.host.latency + rates_.network.latency * std::log2(static_cast<double>(hosts))};
}

double CostModel::seconds(const PlannedCall& call) const {
  const Rates::Link by = link(*call.ranks);
  const int ranks = static_cast<int>(call.ranks->size());
  return by.latency + ring_bytes(call.kind, static_cast<double>(call.bytes), ranks) / by.bandwidth;
}

double CostModel::transfer_seconds(std::size_t bytes, int from, int to) const {
  const Rates::Link by = link(from < to ? std::vector<int>{from, to} : std::vector<int>{to, from});
  return by.latency + static_cast<double>(bytes) / by.bandwidth;
}

}  // namespace megalith
