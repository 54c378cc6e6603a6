#include "parallel/cost/cost_model.h"

#include <algorithm>
#include <cmath>

#include "core/device/copy.h"
#include "parallel/comm/collective.h"

namespace megalith {

double ring_bytes(std::string_view kind, double bytes, int ranks) {
  const double n = ranks;
  if (ranks <= 1) return 0;
  if (kind == "all_reduce") return 2 * (n - 1) / n * bytes;
  if (kind == "reduce_scatter") return (n - 1) / n * bytes;
  if (kind == "all_gather") return (n - 1) * bytes;  // `bytes` is one rank's part
  return bytes;
}

double ring_bytes(const PlannedCall& call) {
  const std::size_t bytes = call.padded > 0 ? call.padded : call.bytes;
  return ring_bytes(call.kind, static_cast<double>(bytes), static_cast<int>(call.ranks->size()));
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

double CostModel::link_seconds(const Access& op, bool to_host) const {
  const Rates::Copies copies = rates_.copies(ranks_);
  const double bytes = static_cast<double>(op.moved_bytes()) / 2;  // read on one side, written on the other
  return rates_.kernel_seconds + bytes / (to_host ? copies.to_host : copies.from_host);
}

double CostModel::seconds(const Access& op, bool in_graph) const {
  const auto of_name = [&op](const auto& known, double other) {
    const auto found = known.find(op.name());
    return found != known.end() ? found->second : other;
  };
  const Cost cost = op.cost();
  if (op.name() == kCopyToHost || op.name() == kCopyFromHost) return link_seconds(op, op.name() == kCopyToHost);
  const double kernel = in_graph ? rates_.graph_kernel_seconds : rates_.kernel_seconds;
  const double start = of_name(rates_.starts, rates_.start_seconds);
  const double speed = cost.work == Work::kMemory ? of_name(rates_.kernels, rates_.memory) : rates_.memory;
  double work = arithmetic_seconds(cost) + cost.bytes / speed;
  if (cost.work == Work::kMatrixProduct) work = std::max(work, static_cast<double>(op.moved_bytes()) / speed);
  return kernel + (start + work);
}

int CostModel::hosts_of(const std::vector<int>& ranks) const {
  int hosts = 0, last = -1;
  for (const int rank : ranks) {
    const int host = rank / rates_.host_ranks;
    if (host != last) ++hosts;
    last = host;
  }
  return hosts;
}

Rates::Link CostModel::link(const std::vector<int>& ranks) const {
  const int hosts = hosts_of(ranks);
  if (hosts <= 1) return rates_.host;
  // One ring per rank of the group on a host; each ring leaves the host by a separate link.
  const double each = static_cast<double>(ranks.size()) / hosts;
  return {.bandwidth = std::min(rates_.host.bandwidth, each * rates_.network.bandwidth),
          .latency = rates_.host.latency + rates_.network.latency * std::log2(static_cast<double>(hosts))};
}

double CostModel::exchange_seconds(const PlannedCall& call) const {
  const double hosts = hosts_of(*call.ranks), ranks = static_cast<double>(call.ranks->size());
  const Rates::Link& within = call.padded > 0 || hosts > 1 ? rates_.host : rates_.peer;
  const double bytes = ring_bytes(call), away = (ranks - ranks / hosts) / (ranks - 1);  // away: share for other hosts
  const double latency = within.latency + rates_.network.latency * std::log2(hosts);
  const double packed = call.padded > 0 ? 4 * bytes / rates_.memory : 0;  // packing and unpacking each read and write
  return latency + packed + std::max((1 - away) * bytes / within.bandwidth, away * bytes / rates_.network.bandwidth);
}

double CostModel::seconds(const PlannedCall& call, bool concurrent) const {
  if (call.kind == ExchangeRows::kName) return exchange_seconds(call);
  if (call.kind == Send::kName || call.kind == Receive::kName)
    return transfer_seconds(call.bytes, call.ranks->front(), call.ranks->back());
  const Rates::Link by = link(*call.ranks);
  return by.latency + ring_bytes(call) / (concurrent ? std::min(by.bandwidth, rates_.busy) : by.bandwidth);
}

CostModel::UnitSeconds CostModel::unit_seconds(const PlannedCall& call, std::size_t sum_room) const {
  if (!is_within_host(call)) return {.link = seconds(call, true)};
  const double link = rates_.peer.latency + ring_bytes(call) / rates_.units;
  if (call.kind != ReduceScatter::kName) return {.link = link};
  // Reads all parts, and reads and writes the shard.
  const double bytes = static_cast<double>(call.bytes) * (1 + 2 / static_cast<double>(call.ranks->size()));
  const double sum = bytes / rates_.memory, rounds = std::ceil(2 * ring_bytes(call) / static_cast<double>(sum_room));
  return {.link = link, .sum = sum, .tail = sum / std::max(rounds, 1.0)};
}

double CostModel::transfer_seconds(std::size_t bytes, int from, int to) const {
  const std::vector<int> ranks{std::min(from, to), std::max(from, to)};
  const Rates::Link by =
      hosts_of(ranks) > 1 ? link(ranks) : Rates::Link{.bandwidth = rates_.units, .latency = rates_.peer.latency};
  return by.latency + static_cast<double>(bytes) / by.bandwidth;
}

double SharedLink::end_of(double begin, double seconds, std::size_t lane, double slowed) {
  double at = begin;
  for (const Span& span : spans_) {
    if (span.end <= at) continue;
    if (at + seconds <= span.begin) break;
    if (span.begin > at) {
      seconds -= span.begin - at;
      at = span.begin;
    }
    const bool ends_first = seconds < left_ * (span.end - at);
    if (ends_first) {
      seconds /= left_;
      break;
    }
    seconds -= left_ * (span.end - at);
    at = span.end;
  }
  const Span mine{.begin = begin, .end = at + seconds, .lane = lane, .slowed = slowed};
  spans_.insert(std::ranges::upper_bound(spans_, begin, {}, &Span::begin), mine);
  return mine.end;
}

double SharedLink::catch_up(std::size_t lane, double from, double to) {
  double gained = 0;
  for (Span& span : spans_) {
    if (span.lane != lane || span.end <= from) continue;
    const double meanwhile = std::max(0.0, std::min(span.end, to) - std::max(span.begin, from));
    if (span.begin > from) span.begin -= gained;
    gained += meanwhile * span.slowed;
    span.end -= gained;
  }
  if (gained > 0) std::ranges::stable_sort(spans_, {}, &Span::begin);
  return gained;
}

}  // namespace megalith
