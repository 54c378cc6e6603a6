// Positions of a schedule's verbs in the lists of their stages.
#pragma once

#include <cstddef>
#include <vector>

#include "core/base/error.h"
#include "parallel/pipeline_parallel/schedule.h"

namespace megalith {

class ScheduleIndex {
 public:
  static constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);

  explicit ScheduleIndex(const Schedule& schedule)
      : placement_(schedule.placement),
        num_microbatches_(schedule.num_microbatches),
        places_(3 * static_cast<std::size_t>(placement_.num_parts()) * static_cast<std::size_t>(num_microbatches_),
                kNowhere) {
    for (int stage = 0; stage < placement_.num_stages; ++stage) {
      const std::vector<Action>& actions = schedule.stages.at(static_cast<std::size_t>(stage));
      for (std::size_t i = 0; i < actions.size(); ++i) {
        const Action& a = actions[i];
        std::size_t& place = places_[entry(a.kind, placement_.part({.stage = stage, .chunk = a.chunk}), a.microbatch)];
        if (place == kNowhere) place = i;
      }
    }
  }

  // Position in the list of the part's stage; kNowhere if missing.
  std::size_t place(ActionKind verb, int part, int microbatch) const { return places_[entry(verb, part, microbatch)]; }

 private:
  std::size_t entry(ActionKind verb, int part, int microbatch) const {
    const auto row = static_cast<std::size_t>(verb) - static_cast<std::size_t>(ActionKind::kForward);
    require(row < 3 && part >= 0 && part < placement_.num_parts() && microbatch >= 0 && microbatch < num_microbatches_,
            "a schedule names a verb, chunk or microbatch that it does not have");
    const std::size_t line = row * static_cast<std::size_t>(placement_.num_parts()) + static_cast<std::size_t>(part);
    return line * static_cast<std::size_t>(num_microbatches_) + static_cast<std::size_t>(microbatch);
  }

  Placement placement_;
  int num_microbatches_;
  std::vector<std::size_t> places_;
};

}  // namespace megalith
