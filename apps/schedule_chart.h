// The picture of a pipeline's schedule as inline SVG: a lane for each stage, a box for each verb of a microbatch, and
// where a stage waits the lane's ground. Colours are the page's classes (report_chart.h).
#pragma once

#include <string>

#include "parallel/pipeline_parallel/schedule.h"
#include "parallel/pipeline_parallel/simulator.h"

namespace megalith {

inline constexpr std::size_t kMostBoxes = 24'000;  // a browser draws as many without effort

// The simulation is of the schedule, in seconds. A verb that takes no time has no box.
std::string schedule_svg(const Schedule& schedule, const Simulation& simulation);

}  // namespace megalith
