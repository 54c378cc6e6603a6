#include "apps/summary/offload_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/base/counted.h"
#include "core/base/text/units.h"
#include "offload/policy.h"

namespace megalith {

namespace {

std::size_t moving_bytes(const OffloadChosen& chosen) {
  const std::vector<OffloadSlot>& slots = chosen.points.slots;
  return std::accumulate(slots.begin(), slots.end(), std::size_t{0},
                         [](std::size_t sum, const OffloadSlot& slot) { return sum + slot.bytes; });
}

double shown_ms(double seconds) { return 1e3 * seconds; }

std::string describe_forecast(const OffloadStats& times) {
  return fmt::format(
      "forecast per microbatch: {:.2f} ms to the host and {:.2f} back, concurrent with {:.2f} of compute, exposed "
      "{:.2f}",
      shown_ms(times.copy_out), shown_ms(times.copy_back), shown_ms(times.step), shown_ms(times.waits()));
}

std::string describe_nodes(const MemoryNodes& nodes) {
  return nodes.first == nodes.last ? fmt::format("node {}", nodes.first)
                                   : fmt::format("nodes {} and {}", nodes.first, nodes.last);
}

}  // namespace

OffloadStats planned_offload(const StepPlans& plans) {
  const OffloadChosen& chosen = plans.offload;
  OffloadStats stats{.slots = std::ssize(chosen.points.slots),
                     .host_bytes = static_cast<std::int64_t>(plans.host.peak_bytes)};
  if (chosen.kept_live_bytes == 0) return stats;
  // An evaluation uses the same block, and may limit its savings.
  const auto less = [](std::size_t with, std::size_t without, std::size_t evaluation) {
    return static_cast<std::int64_t>(std::max(without, evaluation)) -
           static_cast<std::int64_t>(std::max(with, evaluation));
  };
  stats.saving_bytes = less(plans.train.live_bytes, chosen.kept_live_bytes, plans.evaluate.live_bytes);
  stats.saved_bytes = less(plans.train.peak_bytes, chosen.kept_peak_bytes, plans.evaluate.peak_bytes);
  return stats;
}

OffloadStats measured_offload(const StepPlans& plans, const StepResult& step, std::optional<std::size_t> driver_bytes,
                              std::size_t host_bytes) {
  OffloadStats measured = step.offload;
  const OffloadStats planned = planned_offload(plans);
  measured.slots = planned.slots;
  measured.saving_bytes = planned.saving_bytes;
  measured.saved_bytes = planned.saved_bytes;
  measured.host_bytes = static_cast<std::int64_t>(host_bytes);
  measured.step = step.seconds;
  const auto kept = static_cast<std::int64_t>(std::max(plans.offload.kept_peak_bytes, plans.evaluate.peak_bytes));
  if (driver_bytes && plans.offload.kept_peak_bytes > 0)
    measured.saved_driver_bytes = std::max<std::int64_t>(0, kept - static_cast<std::int64_t>(*driver_bytes));
  return measured;
}

std::vector<OffloadStats> worst_of_stages(const std::vector<OffloadStats>& ranks, std::size_t stages) {
  const auto of_stage = static_cast<std::ptrdiff_t>(ranks.size() / stages);
  std::vector<OffloadStats> worst;
  for (auto begin = ranks.begin(); begin != ranks.end(); begin += of_stage) {
    const auto end = begin + of_stage;
    worst.push_back(*std::ranges::max_element(begin, end, {}, &OffloadStats::waits));
    const auto least = std::ranges::min_element(begin, end, {}, [](const OffloadStats& rank) { return rank.ratio(); });
    worst.back().saving_bytes = least->saving_bytes;
    worst.back().saved_bytes = least->saved_bytes;
    worst.back().saved_driver_bytes = least->saved_driver_bytes;
  }
  return worst;
}

std::string describe_measured(const OffloadStats& m) {
  std::string text = fmt::format(
      "{}, {:.2f} MiB to the host in {:.2f} ms and {:.2f} back in {:.2f}, in a step of {:.2f}; compute waited {:.2f} "
      "and {:.2f}; saves {:.2f} MiB for {:.2f} MiB offloaded at peak memory (R = {:.4f})",
      counted(m.slots, "slot"), mib(m.bytes_out), shown_ms(m.copy_out), mib(m.bytes_back), shown_ms(m.copy_back),
      shown_ms(m.step), shown_ms(m.wait_out), shown_ms(m.wait_back), mib(m.saved_bytes), mib(m.saving_bytes),
      m.ratio());
  text += m.saved_driver_bytes ? fmt::format(", {:.2f} by the driver (R = {:.4f})", mib(*m.saved_driver_bytes),
                                             m.ratio(*m.saved_driver_bytes))
                               : ", n/a by the driver";
  return m.nodes.first < 0 ? text : text + "; the host's memory is on NUMA " + describe_nodes(m.nodes);
}

std::string describe_misplaced(const std::vector<OffloadStats>& ranks) {
  const auto is_misplaced = [](const OffloadStats& rank) {
    const auto is_elsewhere = [&](int node) { return node >= 0 && rank.near_node >= 0 && node != rank.near_node; };
    return is_elsewhere(rank.nodes.first) || is_elsewhere(rank.nodes.last);
  };
  const auto first = std::ranges::find_if(ranks, is_misplaced);
  if (first == ranks.end()) return "";
  return fmt::format(
      "activations on the host of {}, first rank {}: expected memory of the GPU's NUMA node {}, got {}; copies are "
      "slower; free memory of that node and run the process on its CPUs",
      counted(std::ranges::count_if(ranks, is_misplaced), "rank"), first - ranks.begin(), first->near_node,
      describe_nodes(first->nodes));
}

std::string describe_layers(const std::vector<std::int64_t>& layers) {
  std::vector<std::int64_t> sorted = layers;
  std::ranges::sort(sorted);
  std::string text;
  for (std::size_t i = 0; i < sorted.size();) {
    std::size_t end = i + 1;
    while (end < sorted.size() && sorted[end] == sorted[end - 1] + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ",", sorted[i]);
    if (end - i > 1) text += fmt::format("-{}", sorted[end - 1]);
    i = end;
  }
  return text;
}

std::vector<Table> offload_tables(const StepPlans& plans, const std::string& whose) {
  const OffloadChosen& chosen = plans.offload;
  if (chosen.rows.empty()) return {};
  const auto mib_text = [](auto bytes) { return fmt::format("{:.2f} MiB", mib(bytes)); };
  Table kinds{.title = "kept activations per microbatch and rank" + whose,
              .columns = {{.width = 12, .is_text = true, .head = "kind"},
                          {.width = 16, .head = "bytes"},
                          {.width = 6, .head = "slots"},
                          {.width = 5, .is_text = true, .head = " "},
                          {.width = 17, .is_text = true, .head = "layers"},
                          {.is_text = true, .head = "where"}}};
  for (const OffloadChosen::Row& row : chosen.rows) {
    kinds.add({std::string(name_of(row.kind)), mib_text(row.bytes), fmt::to_string(row.slots),
               row.slots == 1 ? "slot" : "slots", "layers " + describe_layers(row.layers),
               row.reason.empty() ? "moves" : "stays: " + row.reason});
  }
  const OffloadStats planned = planned_offload(plans);
  Table sums{.columns = {{.width = 25, .is_text = true}, {.width = 16}}};
  const auto other = plans.train.live_activations.find(std::string(name_of(SlotKind::kOther)));  // at peak memory
  if (other != plans.train.live_activations.end()) sums.add({"of other kinds", mib_text(other->second)});
  sums.add({"saved, peak memory", mib_text(planned.saving_bytes)});
  sums.add({"saved, step arena", mib_text(planned.saved_bytes)}, fmt::format(", R = {:.4f}", planned.ratio()));
  sums.add({"host memory, pinned", mib_text(planned.host_bytes)});
  if (chosen.forecast) sums.add({}, describe_forecast(*chosen.forecast));
  return {std::move(kinds), std::move(sums)};
}

std::string describe_copies(const StepPlans& plans, std::int64_t microbatches, const StepTimes* times,
                            const std::string& whose) {
  if (plans.offload.points.empty()) return {};
  const double bytes = plans.offload.used_bytes * static_cast<double>(microbatches);
  double of_microbatch = 0;  // with waits
  if (times == nullptr) return fmt::format("offload{}: {:.2f} MiB to the host and back", whose, mib(bytes));
  for (const StepTimes::Chunk& chunk : times->chunks)
    of_microbatch += chunk.forward + chunk.backward_data + chunk.backward_weight;
  return fmt::format(
      "offload{}: {:.2f} MiB to the host in {:.2f} ms and back in {:.2f} ms, concurrent with {:.2f} ms of forward and "
      "backward; exposed {:.2f} and {:.2f} ms",
      whose, mib(bytes), shown_ms(times->offload.copy_out), shown_ms(times->offload.copy_back),
      shown_ms(static_cast<double>(microbatches) * of_microbatch - times->offload.wait_out - times->offload.wait_back),
      shown_ms(times->offload.wait_out), shown_ms(times->offload.wait_back));
}

std::string describe_offloading(const StepPlans& plans) {
  const OffloadChosen& chosen = plans.offload;
  if (chosen.rows.empty()) return {};
  const auto slots = std::ssize(chosen.points.slots);
  if (slots == 0) {
    const auto asked = std::ranges::find_if(chosen.rows, [](const auto& row) { return row.reason != kNotAskedFor; });
    const OffloadChosen::Row& first = asked == chosen.rows.end() ? chosen.rows.front() : *asked;
    return fmt::format("nothing is offloaded: {}: {}{}", name_of(first.kind), first.reason,
                       chosen.rows.size() > 1 ? "; plan lists the others" : "");
  }
  std::string kinds;
  for (const OffloadChosen::Row& row : chosen.rows) {
    if (row.reason.empty())
      kinds +=
          fmt::format("{}{} of layers {}", kinds.empty() ? "" : ", ", name_of(row.kind), describe_layers(row.layers));
  }
  const OffloadStats planned = planned_offload(plans);
  std::string text = fmt::format(
      "{}; {}, {:.2f} MiB per microbatch, {:.2f} MiB of host memory; saves {:.2f} MiB for {:.2f} MiB offloaded at peak "
      "memory (R = "
      "{:.4f})",
      kinds, counted(slots, "slot"), mib(moving_bytes(chosen)), mib(plans.host.peak_bytes), mib(planned.saved_bytes),
      mib(planned.saving_bytes), planned.ratio());
  if (chosen.forecast) text += "; " + describe_forecast(*chosen.forecast);
  return text;
}

}  // namespace megalith
