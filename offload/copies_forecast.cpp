#include "offload/copies_forecast.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "offload/host_room.h"
#include "offload/placement.h"

namespace megalith {

void CopiesForecast::place(const OffloadRecording& recording, const std::vector<OffloadCandidate>& candidates,
                           const std::vector<double>& bytes, OffloadPoints& points,
                           std::vector<OffloadChoice>& choices) const {
  place_all(recording, candidates, bytes, points, choices);
  if (spec_.host_room == std::numeric_limits<double>::infinity()) return;
  const std::vector<bool> fits = with_room_on_host(step(), points, spec_.host_room);
  if (std::ranges::find(fits, false) == fits.end()) return;
  for (std::size_t i = 0, slot = 0; i < choices.size(); ++i) {
    if (choices[i].moves && !fits[slot++]) choices[i] = {.moves = false, .reason = "not enough host memory"};
  }
  place_all(recording, candidates, bytes, points, choices);
}

OffloadStats CopiesForecast::times(const std::vector<double>& bytes, const OffloadPoints& points) const {
  const auto microbatches = static_cast<double>(spec_.microbatches);
  OffloadStats stats = forecast_copies(step(), points, bytes, spec_.rates);
  stats.step = std::accumulate(spec_.seconds.begin(), spec_.seconds.end(), 0.0);
  for (double* seconds : {&stats.copy_out, &stats.copy_back, &stats.wait_out, &stats.wait_back, &stats.step})
    *seconds /= microbatches;
  return stats;
}

void CopiesForecast::place_all(const OffloadRecording& recording, const std::vector<OffloadCandidate>& candidates,
                               const std::vector<double>& bytes, OffloadPoints& points,
                               std::vector<OffloadChoice>& choices) const {
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
                                                    .rates = spec_.rates,
                                                    .max_stalls = spec_.slowdown,
                                                    .layers = spec_.distance,
                                                    .room = spec_.room},
                                                   points);
  std::vector<OffloadSlot> move;
  for (std::size_t i = 0; i < fates.size(); ++i) {
    if (fates[i] == SlotFate::kMoves) {
      move.push_back(points.slots[i]);
      continue;
    }
    choices[candidate_of[i]] = {.moves = false,
                                .reason = fates[i] == SlotFate::kFreesNothing
                                              ? "peak memory would not fall"
                                              : fmt::format("its copies would not overlap with computation "
                                                            "(--offload-slowdown {})",
                                                            spec_.slowdown)};
  }
  points.slots = std::move(move);
}

}  // namespace megalith
