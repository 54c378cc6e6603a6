#include "apps/offload_choice.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "apps/expert_rows.h"
#include "apps/layer_offload.h"
#include "apps/rates.h"
#include "apps/step_times.h"
#include "offload/forecast.h"

namespace megalith {

namespace {

// Of rows that experts got room for those that are expected.
double used_bytes(const OffloadSlot& slot, const std::optional<ExpertRows>& rows) {
  const auto bytes = static_cast<double>(slot.bytes);
  if (!slot.bounded || !rows) return bytes;
  const bool arrived = slot.kind == SlotKind::kExpertFc1;
  const double mean = arrived ? rows->mean.arrived : rows->mean.rows;
  const auto room = static_cast<double>(arrived ? rows->room.arrived : rows->room.rows);
  return bytes * std::min(1.0, mean / room);
}

void keep_what_stalls(const Rank& plain, const StepRecording& recording,
                      const std::vector<OffloadCandidate>& candidates, const std::vector<double>& bytes,
                      const std::vector<int>& layer_of_segment, std::vector<OffloadChoice>& choices) {
  const Options& options = plain.options;
  const Rates rates = read_rates(options.forecast.rates);
  const auto ranks = static_cast<int>(plain.config.mesh.world());
  const CostModel costs(rates,
                        {.width = static_cast<double>(options.model.kv_channels),
                         .length = static_cast<double>(options.model.seq_length)},
                        ranks);
  const StepTimes times = times_of(recording, costs);
  const Rates::Copies& copies = rates.copies(ranks);
  keep_what_stalls({.actions = recording.actions, .seconds = times.action_seconds},
                   {.candidates = candidates,
                    .bytes = bytes,
                    .layer_of_segment = layer_of_segment,
                    .rates = {.out = copies.to_host, .back = copies.from_host},
                    .between_layers = options.train.cuda_graph_impl != CudaGraphImpl::kNone},
                   choices);
}

void add_row(const OffloadCandidate& candidate, const OffloadChoice& choice, std::vector<OffloadChosen::Row>& rows) {
  const OffloadSlot& slot = candidate.slot;
  auto row = std::ranges::find_if(
      rows, [&](const OffloadChosen::Row& each) { return each.kind == slot.kind && each.reason == choice.reason; });
  if (row == rows.end()) row = rows.insert(row, {.kind = slot.kind, .reason = choice.reason});
  if (std::ranges::find(row->layers, slot.layer) == row->layers.end()) row->layers.push_back(slot.layer);
  ++row->slots;
  row->bytes += slot.bytes;
}

}  // namespace

bool offloads(const Options& options) { return options.offload.fine_grained_activation_offloading; }

OffloadChosen choose_offloads(const Rank& plain, const StepRecording& recording) {
  std::vector<SegmentName> names;
  OffloadChosen chosen;
  for (const NamedSegment& segment : plain.model.gpt.segments) {
    names.push_back({.name = segment.name, .layer = segment.layer});
    chosen.points.layer_of_segment.push_back(segment.layer_unit);
  }
  const std::vector<OffloadCandidate> candidates = find_candidates({.arena = plain.memory.arena,
                                                                    .timeline = recording.timeline,
                                                                    .actions = recording.actions,
                                                                    .entries = recording.entries},
                                                                   names);
  const OffloadRequest request = offload_request(plain.options, plain.model.parts);
  std::vector<OffloadChoice> choices = choose_offloads(candidates, request);
  const std::optional<ExpertRows> rows = expert_rows(plain.options, plain.config);
  std::vector<double> bytes;
  for (const OffloadCandidate& candidate : candidates) bytes.push_back(used_bytes(candidate.slot, rows));
  if (request.by_forecast)
    keep_what_stalls(plain, recording, candidates, bytes, chosen.points.layer_of_segment, choices);
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    add_row(candidates[i], choices[i], chosen.rows);
    if (choices[i].moves) chosen.used_bytes += bytes[i];
  }
  std::ranges::stable_sort(chosen.rows, {},
                           [](const OffloadChosen::Row& row) { return std::tuple(!row.reason.empty(), row.kind); });
  chosen.points.slots = moving(candidates, choices);
  chosen.kept_live_bytes = recording.plans.train.live_bytes;
  chosen.kept_peak_bytes = recording.plans.train.peak_bytes;
  return chosen;
}

}  // namespace megalith
