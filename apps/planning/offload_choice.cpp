#include "apps/planning/offload_choice.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "apps/checkpoint/async_save.h"
#include "apps/config/layer_offload.h"
#include "apps/config/machine_facts.h"
#include "apps/config/memory_options.h"
#include "apps/config/offload_options.h"
#include "apps/config/program_options.h"
#include "apps/cost/expert_rows.h"
#include "apps/cost/step_times.h"
#include "core/model/config.h"
#include "offload/copies_forecast.h"
#include "parallel/cost/rates.h"

namespace megalith {

namespace {

// Rows of a bounded slot (of experts or arrived tokens), from MeanRows or ExpertRoom.
template <class Rows>
auto rows_of(const OffloadSlot& slot, const Rows& rows) {
  return slot.kind == SlotKind::kExpertFc1 ? rows.arrived : rows.rows;
}

// Bytes that a slot is expected to use; rows of experts have spare capacity.
double used_bytes(const OffloadSlot& slot, const std::optional<ExpertRows>& rows) {
  const auto bytes = static_cast<double>(slot.bytes);
  if (!slot.bounded || !rows) return bytes;
  return bytes * std::min(1.0, rows_of(slot, rows->mean) / static_cast<double>(rows_of(slot, rows->room)));
}

// Sets the expected rows of experts, which copy engines carry even if unused. A kernel on multiprocessors carries the
// rows beyond. A CPU has no such engine.
void set_sure_rows(OffloadSlot& slot, const std::optional<ExpertRows>& rows, DeviceType device) {
  if (slot.bounded && rows && device == DeviceType::kCuda)
    slot.sure_rows = static_cast<std::int64_t>(rows_of(slot, rows->mean));
}

// Bytes of the rank's share of its host that auto may plan for, less gaps, the process itself and the checkpoint copy.
// On the CPU a step without offload also uses this memory.
double host_room(const Rank& plain, const StepRecording& recording) {
  constexpr double kForSlots = 0.85;
  const Options& options = plain.options;
  if (options.machine.host_share == 0 || !offloads_by_forecast(options)) return std::numeric_limits<double>::infinity();
  auto taken = static_cast<double>(staging_bytes(shards_to_write(plain)));
  if (options.machine.host_is_device)
    taken += static_cast<double>(plain.memory.pool.allocated_bytes() + recording.plans.train.peak_bytes);
  return std::max(0.0, kForSlots * static_cast<double>(options.machine.host_share) - taken);
}

// Forecast by the machine's rates; at least kLaidOut of the arena is not lost in gaps.
CopiesForecast copies_forecast(const Rank& plain, const StepRecording& recording) {
  constexpr double kLaidOut = 0.95;
  const Options& options = plain.options;
  const Rates rates = read_rates(options.forecast.rates);
  const auto ranks = static_cast<int>(plain.config.mesh.world());
  const CostModel costs(rates,
                        {.width = static_cast<double>(options.model.kv_channels),
                         .length = static_cast<double>(options.model.seq_length)},
                        ranks);
  const Rates::Copies copies = rates.copies(ranks);
  const CategoryBytes persistent = plain.memory.pool.allocated_by_category();
  return CopiesForecast({.actions = recording.actions,
                         .seconds = times_of(recording, costs).action_seconds,
                         .microbatches = recording.microbatches,
                         .rates = {.out = copies.to_host, .back = copies.from_host},
                         .slowdown = options.offload.offload_slowdown,
                         .distance = static_cast<int>(options.offload.offload_distance),
                         .host_room = host_room(plain, recording),
                         .room = kLaidOut * (rates.device_memory - rates.device_reserve -
                                             static_cast<double>(std::accumulate(persistent.begin(), persistent.end(),
                                                                                 std::size_t{0})))});
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

// Adds rows for kinds that a custom segment could keep but does not keep.
void add_absent(const Rank& plain, const std::vector<OffloadCandidate>& candidates,
                std::vector<OffloadChosen::Row>& rows) {
  const auto is_kept = [&](std::int64_t layer, SlotKind kind) {
    return std::ranges::any_of(candidates, [&](const OffloadCandidate& each) {
      return std::ranges::find(each.views, OffloadCandidate::View{kind, layer}) != each.views.end();
    });
  };
  for (const std::string& word : plain.options.offload.offload_modules) {
    for (const OffloadModule& module : offload_modules_of(word, plain.options.num_layers())) {
      OffloadChosen::Row row{.kind = module.kind, .reason = "no layer keeps it"};
      bool kept = false;
      for (const NamedSegment& segment : plain.model.gpt.segments) {
        if (segment.module != SegmentModule::kOwn || segment.layer < module.first || segment.layer > module.last)
          continue;
        row.layers.push_back(segment.layer);
        kept = kept || is_kept(segment.layer, module.kind);
      }
      if (!kept && !row.layers.empty()) rows.push_back(std::move(row));
    }
  }
}

// Applies --offload-distance.
void set_distance(int layers, OffloadPoints& points) {
  if (layers > 0) points.lag = points.ahead = layers;
  for (OffloadSlot& slot : points.slots) {
    slot.lag = slot.ahead = -1;
    if (layers == 0) tighten(slot, points);
  }
}

}  // namespace

bool offloads(const Options& options) { return options.offload.fine_grained_activation_offloading; }

OffloadChosen choose_offloads(const Rank& plain, const StepRecording& recording) {
  const Options& options = plain.options;
  std::vector<SegmentName> names;
  OffloadChosen chosen;
  chosen.points.between_layers = options.memory.cuda_graph_impl != CudaGraphImpl::kNone;
  chosen.points.in_pieces = plain.config.pipeline.overlaps_exchanges;
  for (const NamedSegment& segment : plain.model.gpt.segments) {
    names.push_back({.name = segment.name, .layer = segment.layer});
    chosen.points.layer_of_segment.push_back(segment.layer_unit);
  }
  const OffloadRecording recorded{.arena = plain.memory.arena,
                                  .timeline = recording.timeline,
                                  .actions = recording.actions,
                                  .entries = recording.entries,
                                  .between_layers = chosen.points.between_layers};
  const std::vector<OffloadCandidate> candidates = find_candidates(recorded, names);
  const OffloadRequest request = offload_request(options, plain.model.parts);
  std::vector<OffloadChoice> choices = choose_offloads(candidates, request);
  const std::optional<ExpertRows> rows = expert_rows(options, plain.config);
  std::vector<double> bytes;
  bytes.reserve(candidates.size());
  for (const OffloadCandidate& candidate : candidates) bytes.push_back(used_bytes(candidate.slot, rows));
  const std::int64_t distance = options.offload.offload_distance;
  std::optional<CopiesForecast> forecast;
  if (!options.forecast.rates.empty()) forecast.emplace(copies_forecast(plain, recording));
  if (forecast && (request.by_forecast || distance < 0)) {
    forecast->place(recorded, candidates, bytes, chosen.points, choices);
  } else {
    chosen.points.slots = moving(candidates, choices);
  }
  std::vector<double> moved;  // bytes by slot
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    add_row(candidates[i], choices[i], chosen.rows);
    if (!choices[i].moves) continue;
    set_sure_rows(chosen.points.slots[moved.size()], rows, options.device);
    moved.push_back(bytes[i]);
    chosen.used_bytes += bytes[i];
  }
  add_absent(plain, candidates, chosen.rows);
  std::ranges::stable_sort(chosen.rows, {},
                           [](const OffloadChosen::Row& row) { return std::tuple(!row.reason.empty(), row.kind); });
  if (distance >= 0) set_distance(static_cast<int>(distance), chosen.points);
  if (forecast && !moved.empty()) chosen.forecast = forecast->times(moved, chosen.points);
  chosen.kept_live_bytes = recording.plans.train.live_bytes;
  chosen.kept_peak_bytes = recording.plans.train.peak_bytes;
  return chosen;
}

}  // namespace megalith
