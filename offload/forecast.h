// How long the copies of slots take beside a step's computing, and which slots hide behind it. Pure, as policy.h.
#pragma once

#include <vector>

#include "offload/policy.h"

namespace megalith {

// Of one direction each, bytes/s, while the other one is under way and the host's other devices copy too.
struct CopyRates {
  double out = 0;   // to the host
  double back = 0;  // from it
};

struct CopyForecast {
  double out_seconds = 0, back_seconds = 0;  // that each direction is busy
  double out_stalls = 0, back_stalls = 0;    // that the compute stream waits for it
  double stalls() const { return out_stalls + back_stalls; }
};

struct StepSeconds {
  const std::vector<Action>& actions;  // without those of slots
  const std::vector<double>& seconds;  // of each, on the compute stream
};

// Of the actions of `points`, but for the slots that `moves` leaves out; `bytes` is what is used of each slot.
struct MovedSlots {
  const OffloadPoints& points;
  const std::vector<double>& bytes;
  const std::vector<bool>& moves;
};
CopyForecast forecast_copies(const StepSeconds& step, const MovedSlots& slots, const CopyRates& rates);

// How far from their readers slots leave and come back: as near as computing hardly waits for copies, kind by kind
// (tighten), and where it waits all the same up to `most` layers away.
struct DistanceRequest {
  const std::vector<double>& bytes;  // of each slot
  CopyRates rates;
  double most_stalls = 0.002;  // of the step's computing, beyond those that no distance avoids
  int most = 3;
};
void choose_distances(const StepSeconds& step, const DistanceRequest& request, OffloadPoints& points);

// Of the candidates that `choices` would move only those that together keep computing from nearly nothing: one by one,
// those first that free the most memory for the longest time. The others stay. `bytes` of each candidate.
struct HiddenRequest {
  const std::vector<OffloadCandidate>& candidates;
  const std::vector<double>& bytes;
  const std::vector<int>& layer_of_segment;
  CopyRates rates;
  bool between_layers = false;  // as OffloadPoints
  double most_stalls = 0.002;   // of the step's computing
};
void keep_what_stalls(const StepSeconds& step, const HiddenRequest& request, std::vector<OffloadChoice>& choices);

}  // namespace megalith
