// Departure and return of slots under a limit of a step's memory. If the limit would be exceeded, slots leave in the
// order of their writers. They return as soon as memory allows, in the order of their use. No slot is further from its
// readers than its copies need.
#pragma once

#include <cstddef>
#include <limits>
#include <vector>

#include "offload/placement.h"
#include "offload/slot_ways.h"

namespace megalith {

struct SlotDistance {  // in layers
  static constexpr int kStays = std::numeric_limits<int>::max();
  int lag = kStays, ahead = kStays;
  bool moves() const { return lag < kStays; }
};

class MemoryLimit {
 public:
  // All arguments outlive the object.
  MemoryLimit(const StepSeconds& step, const PlacementRequest& request, const ListVerbs& verbs,
              const OffloadPoints& points);

  double least() const { return least_; }  // peak bytes with all slots away as long as possible
  double most() const { return most_; }    // peak bytes with no slot away
  // Minimum distance of a slot, or the request's common distance if that is set.
  SlotDistance nearest(std::size_t item) const {
    return {.lag = nearest_.slots[item].lag, .ahead = nearest_.slots[item].ahead};
  }
  // Distances of each slot, for all microbatches.
  std::vector<SlotDistance> within(double limit);

 private:
  // A slot of one microbatch that leaves. `way` has the minimum distance to the readers.
  struct Leaving {
    SlotWay way;
    std::size_t left = 0, reload = 0;  // positions in the list that memory allows
    SlotDistance far;                  // their distances
    SlotDistance hides;                // distances that copies need to be complete in time
  };
  static constexpr double kSlack = 1.1;  // copies do not always reach their rates

  std::vector<Leaving> leave(double limit);
  std::size_t come_back(Leaving& leaving, double limit, std::size_t not_before);
  void wait_when_over(std::vector<Leaving>& all);
  void start_in_time(std::vector<Leaving>& all) const;

  const OffloadSlot& slot(const SlotWay& way) const { return nearest_.slots[static_cast<std::size_t>(way.item)]; }
  double held(const SlotWay& way) const { return static_cast<double>(slot(way).bytes); }
  double seconds(const SlotWay& way, double rate) const {
    return kSlack * request_.bytes[static_cast<std::size_t>(way.item)] / rate;
  }
  const LayerVerbs& layer(int index) const { return verbs_.layers()[static_cast<std::size_t>(index)]; }
  int last_ended(int layer_before, std::size_t action) const;

  const StepSeconds& step_;
  const PlacementRequest& request_;
  const ListVerbs& verbs_;
  OffloadPoints nearest_;
  std::vector<SlotWay> ways_;
  double least_ = 0, most_ = 0;
  std::vector<double> held_;   // bytes during each action
  std::vector<double> clock_;  // start of each action, including waits for copies to the host
};

}  // namespace megalith
