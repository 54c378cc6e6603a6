#include "apps/cost_model.h"

#include <algorithm>
#include <cmath>

#include "core/tensor/dtype.h"

namespace megalith {

namespace {

double bytes_of(const AccessRange& range) {
  if (range.sizes.empty()) return static_cast<double>(range.bytes);
  double elements = 1;  // of a strided view, whose range has more than it touches
  for (const std::int64_t size : range.sizes) elements *= static_cast<double>(size);
  return elements * static_cast<double>(size_of(static_cast<DType>(range.dtype)));
}

double bytes_of(const Access& op) {
  double bytes = 0;
  for (const AccessRange& range : op.ranges()) bytes += bytes_of(range);
  return bytes;
}

}  // namespace

double ring_bytes(std::string_view kind, double bytes, int ranks) {
  const double n = ranks;
  if (ranks <= 1) return 0;
  if (kind == "all_reduce") return 2 * (n - 1) / n * bytes;
  if (kind == "reduce_scatter") return (n - 1) / n * bytes;
  if (kind == "all_gather") return (n - 1) * bytes;  // counted by the rank's own part
  return bytes;
}

// The product's operands are the first two ranges and the last, whatever is fused into it lies between.
double CostModel::gemm_seconds(const Access& op) const {
  const std::vector<AccessRange>& ranges = op.ranges();
  const double size = std::cbrt(op.flops() / 2);
  double fused = bytes_of(op);
  for (const AccessRange* operand : {&ranges[0], &ranges[1], &ranges.back()}) fused -= bytes_of(*operand);
  return op.flops() / rates_.gemm_rate(size) + fused / rates_.memory;
}

double CostModel::seconds(const Access& op) const {
  const std::string_view name = op.name();
  if (name == "gemm" && op.flops() > 0 && op.ranges().size() >= 3) return rates_.kernel_seconds + gemm_seconds(op);
  if (op.flops() > 0 && (name == "attention_forward" || name == "attention_backward")) {
    const Rates::AttentionPoint rate = rates_.attention_rate(heads_.width, heads_.length);
    return rates_.kernel_seconds + op.flops() / (name == "attention_forward" ? rate.forward : rate.backward);
  }
  const auto known = rates_.kernels.find(name);
  return rates_.kernel_seconds + bytes_of(op) / (known != rates_.kernels.end() ? known->second : rates_.memory);
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
