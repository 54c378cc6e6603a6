#include "apps/offload_choice.h"

#include <algorithm>
#include <numeric>
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

// What a forecast of the plain step says of its copies.
class CopiesForecast {
 public:
  CopiesForecast(const Rank& plain, const StepRecording& recording)
      : recording_(recording), rates_(read_rates(plain.options.forecast.rates)) {
    const Options& options = plain.options;
    const auto ranks = static_cast<int>(plain.config.mesh.world());
    const CostModel costs(rates_,
                          {.width = static_cast<double>(options.model.kv_channels),
                           .length = static_cast<double>(options.model.seq_length)},
                          ranks);
    seconds_ = times_of(recording, costs).action_seconds;
    const Rates::Copies& copies = rates_.copies(ranks);
    copies_ = {.out = copies.to_host, .back = copies.from_host};
  }

  void keep_what_stalls(const std::vector<OffloadCandidate>& candidates, const std::vector<double>& bytes,
                        const OffloadPoints& points, std::vector<OffloadChoice>& choices) const {
    megalith::keep_what_stalls(step(),
                               {.candidates = candidates,
                                .bytes = bytes,
                                .layer_of_segment = points.layer_of_segment,
                                .rates = copies_,
                                .between_layers = points.between_layers},
                               choices);
  }
  void choose_distances(const std::vector<double>& bytes, OffloadPoints& points) const {
    megalith::choose_distances(step(), {.bytes = bytes, .rates = copies_}, points);
  }
  OffloadChosen::Times times(const std::vector<double>& bytes, const OffloadPoints& points) const {
    const std::vector<bool> all(bytes.size(), true);
    const auto microbatches = static_cast<double>(recording_.microbatches);
    CopyForecast copies = forecast_copies(step(), {.points = points, .bytes = bytes, .moves = all}, copies_);
    for (double* seconds : {&copies.out_seconds, &copies.back_seconds, &copies.out_stalls, &copies.back_stalls})
      *seconds /= microbatches;
    return {.copies = copies, .computing = std::accumulate(seconds_.begin(), seconds_.end(), 0.0) / microbatches};
  }

 private:
  StepSeconds step() const { return {.actions = recording_.actions, .seconds = seconds_}; }

  const StepRecording& recording_;
  Rates rates_;
  std::vector<double> seconds_;
  CopyRates copies_;
};

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
  const Options& options = plain.options;
  std::vector<SegmentName> names;
  OffloadChosen chosen;
  chosen.points.between_layers = options.train.cuda_graph_impl != CudaGraphImpl::kNone;
  for (const NamedSegment& segment : plain.model.gpt.segments) {
    names.push_back({.name = segment.name, .layer = segment.layer});
    chosen.points.layer_of_segment.push_back(segment.layer_unit);
  }
  const std::vector<OffloadCandidate> candidates = find_candidates({.arena = plain.memory.arena,
                                                                    .timeline = recording.timeline,
                                                                    .actions = recording.actions,
                                                                    .entries = recording.entries},
                                                                   names);
  const OffloadRequest request = offload_request(options, plain.model.parts);
  std::vector<OffloadChoice> choices = choose_offloads(candidates, request);
  const std::optional<ExpertRows> rows = expert_rows(options, plain.config);
  std::vector<double> bytes;
  for (const OffloadCandidate& candidate : candidates) bytes.push_back(used_bytes(candidate.slot, rows));
  std::optional<CopiesForecast> forecast;
  if (!options.forecast.rates.empty()) forecast.emplace(plain, recording);
  if (request.by_forecast) forecast->keep_what_stalls(candidates, bytes, chosen.points, choices);
  std::vector<double> moved;  // bytes of each slot
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    add_row(candidates[i], choices[i], chosen.rows);
    if (choices[i].moves) moved.push_back(bytes[i]);
  }
  chosen.used_bytes = std::accumulate(moved.begin(), moved.end(), 0.0);
  std::ranges::stable_sort(chosen.rows, {},
                           [](const OffloadChosen::Row& row) { return std::tuple(!row.reason.empty(), row.kind); });
  chosen.points.slots = moving(candidates, choices);
  if (const std::int64_t layers = options.offload.offload_distance; layers > 0) {
    chosen.points.lag = chosen.points.ahead = static_cast<int>(layers);
  } else if (layers == 0) {
    for (OffloadSlot& slot : chosen.points.slots) tighten(slot, chosen.points);
  } else if (forecast && !moved.empty()) {
    forecast->choose_distances(moved, chosen.points);
  }
  if (forecast && !moved.empty()) chosen.forecast = forecast->times(moved, chosen.points);
  chosen.kept_live_bytes = recording.plans.train.live_bytes;
  chosen.kept_peak_bytes = recording.plans.train.peak_bytes;
  return chosen;
}

}  // namespace megalith
