#include "apps/planning/offload_choice.h"

#include <fmt/format.h>

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
#include "offload/host_room.h"
#include "offload/placement.h"
#include "parallel/cost/rates.h"

namespace megalith {

namespace {

// Of a bounded slot, which holds rows of experts or tokens that arrived: MeanRows or ExpertRoom.
template <class Rows>
auto rows_of(const OffloadSlot& slot, const Rows& rows) {
  return slot.kind == SlotKind::kExpertFc1 ? rows.arrived : rows.rows;
}

// Of rows that experts got room for those that are expected.
double used_bytes(const OffloadSlot& slot, const std::optional<ExpertRows>& rows) {
  const auto bytes = static_cast<double>(slot.bytes);
  if (!slot.bounded || !rows) return bytes;
  return bytes * std::min(1.0, rows_of(slot, rows->mean) / static_cast<double>(rows_of(slot, rows->room)));
}

// Rows of experts that are expected leave and come back by copy engines, whether in use or not: the kernel for those
// beyond takes multiprocessors. On the CPU there is no such engine.
void set_sure_rows(OffloadSlot& slot, const std::optional<ExpertRows>& rows, DeviceType device) {
  if (slot.bounded && rows && device == DeviceType::kCuda)
    slot.sure_rows = static_cast<std::int64_t>(rows_of(slot, rows->mean));
}

// Bytes of the rank's share of its host that auto may plan for: some are lost in gaps, the process itself needs some,
// and a checkpoint is written from a copy there. On the CPU what a step takes without moving is there too.
double host_room(const Rank& plain, const StepRecording& recording) {
  constexpr double kForSlots = 0.85;
  const Options& options = plain.options;
  if (options.machine.host_share == 0 || !offloads_by_forecast(options)) return std::numeric_limits<double>::infinity();
  auto taken = static_cast<double>(staging_bytes(shards_to_write(plain)));
  if (options.machine.host_is_device)
    taken += static_cast<double>(plain.memory.pool.allocated_bytes() + recording.plans.train.peak_bytes);
  return std::max(0.0, kForSlots * static_cast<double>(options.machine.host_share) - taken);
}

// What a forecast of the plain step says of its copies.
class CopiesForecast {
 public:
  CopiesForecast(const Rank& plain, const StepRecording& recording)
      : recording_(recording),
        rates_(read_rates(plain.options.forecast.rates)),
        slowdown_(plain.options.offload.offload_slowdown),
        distance_(static_cast<int>(plain.options.offload.offload_distance)),
        host_room_(host_room(plain, recording)) {
    const Options& options = plain.options;
    const auto ranks = static_cast<int>(plain.config.mesh.world());
    const CostModel costs(rates_,
                          {.width = static_cast<double>(options.model.kv_channels),
                           .length = static_cast<double>(options.model.seq_length)},
                          ranks);
    seconds_ = times_of(recording, costs).action_seconds;
    const Rates::Copies copies = rates_.copies(ranks);
    copies_ = {.out = copies.to_host, .back = copies.from_host};
    const CategoryBytes persistent = plain.memory.pool.allocated_by_category();
    room_ = kLaidOut * (rates_.device_memory - rates_.device_reserve -
                        static_cast<double>(std::accumulate(persistent.begin(), persistent.end(), std::size_t{0})));
  }

  // Sets the distances of the slots that `choices` move. Slots that do not fit on the host stay, and the others are
  // placed again, as they then have the links to themselves.
  void place(const OffloadRecording& recording, const std::vector<OffloadCandidate>& candidates,
             const std::vector<double>& bytes, OffloadPoints& points, std::vector<OffloadChoice>& choices) const {
    place_all(recording, candidates, bytes, points, choices);
    if (host_room_ == std::numeric_limits<double>::infinity()) return;
    const std::vector<bool> fits = with_room_on_host(step(), points, host_room_);
    if (std::ranges::find(fits, false) == fits.end()) return;
    for (std::size_t i = 0, slot = 0; i < choices.size(); ++i) {
      if (choices[i].moves && !fits[slot++]) choices[i] = {.moves = false, .reason = "no room on the host"};
    }
    place_all(recording, candidates, bytes, points, choices);
  }
  OffloadStats times(const std::vector<double>& bytes, const OffloadPoints& points) const {
    const auto microbatches = static_cast<double>(recording_.microbatches);
    OffloadStats stats = forecast_copies(step(), points, bytes, copies_);
    stats.step = std::accumulate(seconds_.begin(), seconds_.end(), 0.0);
    for (double* seconds : {&stats.copy_out, &stats.copy_back, &stats.wait_out, &stats.wait_back, &stats.step})
      *seconds /= microbatches;
    return stats;
  }

 private:
  void place_all(const OffloadRecording& recording, const std::vector<OffloadCandidate>& candidates,
                 const std::vector<double>& bytes, OffloadPoints& points, std::vector<OffloadChoice>& choices) const {
    std::vector<double> moved;
    std::vector<std::size_t> candidate_of;
    for (std::size_t i = 0; i < choices.size(); ++i) {
      if (!choices[i].moves) continue;
      moved.push_back(bytes[i]);
      candidate_of.push_back(i);
    }
    points.slots = moving(candidates, choices);
    const std::vector<SlotFate> fates = place_copies(step(),
                                                     {.bytes = moved,
                                                      .alive = bytes_alive(recording),
                                                      .rates = copies_,
                                                      .most_stalls = slowdown_,
                                                      .layers = distance_,
                                                      .room = room_},
                                                     points);
    std::vector<OffloadSlot> move;
    for (std::size_t i = 0; i < fates.size(); ++i) {
      if (fates[i] == SlotFate::kMoves) {
        move.push_back(points.slots[i]);
        continue;
      }
      choices[candidate_of[i]] = {
          .moves = false,
          .reason = fates[i] == SlotFate::kFreesNothing
                        ? "the fullest moment would be as full"
                        : fmt::format("its copies would not hide behind computing (--offload-slowdown {})", slowdown_)};
    }
    points.slots = std::move(move);
  }
  StepSeconds step() const { return {.actions = recording_.actions, .seconds = seconds_}; }

  const StepRecording& recording_;
  Rates rates_;
  std::vector<double> seconds_;
  CopyRates copies_;
  double slowdown_;
  int distance_;
  double host_room_;
  double room_ = 0;                         // for what is alive in a step
  static constexpr double kLaidOut = 0.95;  // of the arena at least is not lost in gaps
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

// Kinds that a segment of the user's own could keep, and does not.
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

// --offload-distance.
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
  for (const OffloadCandidate& candidate : candidates) bytes.push_back(used_bytes(candidate.slot, rows));
  const std::int64_t distance = options.offload.offload_distance;
  std::optional<CopiesForecast> forecast;
  if (!options.forecast.rates.empty()) forecast.emplace(plain, recording);
  if (forecast && (request.by_forecast || distance < 0)) {
    forecast->place(recorded, candidates, bytes, chosen.points, choices);
  } else {
    chosen.points.slots = moving(candidates, choices);
  }
  std::vector<double> moved;  // bytes of each slot
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
