#include "apps/summary/offload_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "core/base/counted.h"
#include "offload/policy.h"

namespace megalith {

namespace {

double mib(double bytes) { return bytes / (1 << 20); }
double mib(std::size_t bytes) { return mib(static_cast<double>(bytes)); }

std::size_t moving_bytes(const OffloadChosen& chosen) {
  const std::vector<OffloadSlot>& slots = chosen.points.slots;
  return std::accumulate(slots.begin(), slots.end(), std::size_t{0},
                         [](std::size_t sum, const OffloadSlot& slot) { return sum + slot.bytes; });
}

double shown_ms(double seconds) { return 1e3 * seconds; }

std::string said_forecast(const OffloadChosen::Times& times) {
  const CopyForecast& copies = times.copies;
  return fmt::format(
      "by forecast {:.2f} ms to the host and {:.2f} back beside {:.2f} of computing a microbatch, which waits {:.2f}",
      shown_ms(copies.out_seconds), shown_ms(copies.back_seconds), shown_ms(times.computing),
      shown_ms(copies.stalls()));
}

std::string said_nodes(const MemoryNodes& nodes) {
  return nodes.first == nodes.last ? fmt::format("node {}", nodes.first)
                                   : fmt::format("nodes {} and {}", nodes.first, nodes.last);
}

}  // namespace

OffloadSaving saving_of(const StepPlans& plans) {
  const OffloadChosen& chosen = plans.offload;
  if (chosen.kept_live_bytes == 0) return {};
  // An evaluation has the same block, and may take more of it than what is left of a training step.
  const auto less = [](std::size_t with, std::size_t without, std::size_t evaluation) {
    return static_cast<double>(std::max(without, evaluation)) - static_cast<double>(std::max(with, evaluation));
  };
  return {.theory = less(plans.train.live_bytes, chosen.kept_live_bytes, plans.evaluate.live_bytes),
          .realised = less(plans.train.peak_bytes, chosen.kept_peak_bytes, plans.evaluate.peak_bytes)};
}

OffloadMeasured measured_offload(const StepPlans& plans, const StepResult& step,
                                 std::optional<std::size_t> driver_bytes, std::size_t host_bytes) {
  OffloadMeasured measured{.slots = std::ssize(plans.offload.points.slots),
                           .bytes_out = step.bytes_out,
                           .bytes_back = step.bytes_back,
                           .host_bytes = static_cast<std::int64_t>(host_bytes),
                           .timed = step.copy_times.has_value(),
                           .times = step.copy_times.value_or(CopyTimes{}),
                           .step_seconds = step.seconds,
                           .saving = saving_of(plans)};
  const std::size_t kept = std::max(plans.offload.kept_peak_bytes, plans.evaluate.peak_bytes);
  if (driver_bytes && plans.offload.kept_peak_bytes > 0)
    measured.driver_saving = std::max(0.0, static_cast<double>(kept) - static_cast<double>(*driver_bytes));
  return measured;
}

std::vector<OffloadMeasured> worst_of_stages(const std::vector<OffloadMeasured>& ranks, std::size_t stages) {
  const std::size_t of_stage = ranks.size() / stages;
  std::vector<OffloadMeasured> worst;
  for (std::size_t first = 0; first < ranks.size(); first += of_stage) {
    const auto begin = ranks.begin() + static_cast<std::ptrdiff_t>(first);
    const auto end = begin + static_cast<std::ptrdiff_t>(of_stage);
    worst.push_back(*std::max_element(begin, end, [](const OffloadMeasured& a, const OffloadMeasured& b) {
      return a.times.waited_out + a.times.waited_back < b.times.waited_out + b.times.waited_back;
    }));
    const auto least = std::min_element(begin, end, [](const OffloadMeasured& a, const OffloadMeasured& b) {
      return a.saving.ratio() < b.saving.ratio();
    });
    worst.back().saving = least->saving;
    worst.back().driver_saving = least->driver_saving;
  }
  return worst;
}

std::string said_measured(const OffloadMeasured& m) {
  const auto ratio = [&m](double bytes) { return OffloadSaving{.theory = m.saving.theory, .realised = bytes}.ratio(); };
  std::string text = fmt::format(
      "{}, {:.2f} MiB to the host in {:.2f} ms and {:.2f} back in {:.2f}, in a step of {:.2f}; computing waited {:.2f} "
      "and {:.2f}; saves {:.2f} MiB for {:.2f} away at the fullest moment (R = {:.4f})",
      counted(m.slots, "slot"), mib(static_cast<double>(m.bytes_out)), shown_ms(m.times.out),
      mib(static_cast<double>(m.bytes_back)), shown_ms(m.times.back), shown_ms(m.step_seconds),
      shown_ms(m.times.waited_out), shown_ms(m.times.waited_back), mib(m.saving.realised), mib(m.saving.theory),
      m.saving.ratio());
  if (m.driver_saving < 0) {
    text += ", n/a by the driver";
  } else {
    text += fmt::format(", {:.2f} by the driver (R = {:.4f})", mib(m.driver_saving), ratio(m.driver_saving));
  }
  return m.nodes.first < 0 ? text : text + "; the host's memory is on NUMA " + said_nodes(m.nodes);
}

std::string said_misplaced(const std::vector<OffloadMeasured>& ranks) {
  const auto is_misplaced = [](const OffloadMeasured& rank) {
    const auto is_elsewhere = [&](int node) { return node >= 0 && rank.near_node >= 0 && node != rank.near_node; };
    return is_elsewhere(rank.nodes.first) || is_elsewhere(rank.nodes.last);
  };
  const auto first = std::ranges::find_if(ranks, is_misplaced);
  if (first == ranks.end()) return "";
  return fmt::format(
      "activations on the host of {}, first rank {}: expected memory of the GPU's NUMA node {}, got {}; copies are "
      "slower: free memory of that node, and let the process run on its CPUs",
      counted(std::ranges::count_if(ranks, is_misplaced), "rank"), first - ranks.begin(), first->near_node,
      said_nodes(first->nodes));
}

std::string said_layers(const std::vector<std::int64_t>& layers) {
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

std::string printed_offload(const StepPlans& plans, const std::string& whose) {
  const OffloadChosen& chosen = plans.offload;
  if (chosen.rows.empty()) return {};
  std::string text = fmt::format("kept activations of a microbatch per rank{}\n", whose);
  for (const OffloadChosen::Row& row : chosen.rows) {
    text += fmt::format("  {:<12} {:>12.2f} MiB {:>6} {:<5} layers {:<10} {}\n", name_of(row.kind), mib(row.bytes),
                        row.slots, row.slots == 1 ? "slot" : "slots", said_layers(row.layers),
                        row.reason.empty() ? "moves" : "stays: " + row.reason);
  }
  const OffloadSaving saving = saving_of(plans);
  const auto line = [&text](const char* name, double bytes) {
    text += fmt::format("  {:<25} {:>12.2f} MiB\n", name, mib(bytes));
  };
  const auto other =
      plans.train.live_activations.find(std::string(name_of(SlotKind::kOther)));  // at the fullest moment
  if (other != plans.train.live_activations.end()) line("of no kind that moves", static_cast<double>(other->second));
  line("saved, fullest moment", saving.theory);
  text +=
      fmt::format("  {:<25} {:>12.2f} MiB, R = {:.4f}\n", "saved, step arena", mib(saving.realised), saving.ratio());
  line("host memory, pinned", static_cast<double>(plans.host.peak_bytes));
  if (chosen.forecast) text += fmt::format("  {}\n", said_forecast(*chosen.forecast));
  return text;
}

std::string printed_copies(const StepPlans& plans, std::int64_t microbatches, const StepTimes* times,
                           const std::string& whose) {
  if (plans.offload.points.empty()) return {};
  const double bytes = plans.offload.used_bytes * static_cast<double>(microbatches);
  double of_microbatch = 0;  // with waits
  if (times == nullptr) return fmt::format("  offload{}: {:.2f} MiB to the host and back\n", whose, mib(bytes));
  for (const StepTimes::Chunk& chunk : times->chunks)
    of_microbatch += chunk.forward + chunk.backward_data + chunk.backward_weight;
  return fmt::format(
      "  offload{}: {:.2f} MiB to the host in {:.2f} ms and back in {:.2f} ms, beside {:.2f} ms of forward and "
      "backward; exposed {:.2f} and {:.2f} ms\n",
      whose, mib(bytes), shown_ms(times->to_host), shown_ms(times->from_host),
      shown_ms(static_cast<double>(microbatches) * of_microbatch - times->exposed_to_host - times->exposed_from_host),
      shown_ms(times->exposed_to_host), shown_ms(times->exposed_from_host));
}

std::string said_offload(const StepPlans& plans) {
  const OffloadChosen& chosen = plans.offload;
  if (chosen.rows.empty()) return {};
  const auto slots = std::ssize(chosen.points.slots);
  if (slots == 0) {
    const auto asked = std::ranges::find_if(chosen.rows, [](const auto& row) { return row.reason != kNotAskedFor; });
    const OffloadChosen::Row& first = asked == chosen.rows.end() ? chosen.rows.front() : *asked;
    return fmt::format("nothing moves: {}: {}{}", name_of(first.kind), first.reason,
                       chosen.rows.size() > 1 ? "; plan lists the others" : "");
  }
  std::string kinds;
  for (const OffloadChosen::Row& row : chosen.rows) {
    if (row.reason.empty())
      kinds += fmt::format("{}{} of layers {}", kinds.empty() ? "" : ", ", name_of(row.kind), said_layers(row.layers));
  }
  const OffloadSaving saving = saving_of(plans);
  std::string text = fmt::format(
      "{}; {}, {:.2f} MiB of a microbatch, {:.2f} MiB of host memory; saves {:.2f} MiB for {:.2f} away at the fullest "
      "moment (R = {:.4f})",
      kinds, counted(slots, "slot"), mib(moving_bytes(chosen)), mib(plans.host.peak_bytes), mib(saving.realised),
      mib(saving.theory), saving.ratio());
  if (chosen.forecast) text += "; " + said_forecast(*chosen.forecast);
  return text;
}

}  // namespace megalith
