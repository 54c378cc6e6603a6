#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>

#include "parallel/pipeline_parallel/schedule.h"
#include "parallel/pipeline_parallel/simulator.h"

namespace megalith {

// Picture of a schedule, as a block of a page (core/reports/page.h): a lane per stage, and a box per verb of a
// microbatch. Gaps between boxes are waits of the stage. Times come from the schedule's simulation. Verbs without
// duration have no box.
inline constexpr std::size_t kMaxBoxes = 24'000;  // browsers draw this number without delay
nlohmann::ordered_json schedule_block(const Schedule& schedule, const Simulation& simulation);

}  // namespace megalith
