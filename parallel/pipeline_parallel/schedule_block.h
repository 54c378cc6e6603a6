#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>

#include "parallel/pipeline_parallel/schedule.h"
#include "parallel/pipeline_parallel/simulator.h"

namespace megalith {

// The picture of a schedule, as a block of a page (core/reports/page.h): a lane for each stage, a box for each verb of
// a microbatch; where a stage waits its lane's ground shows. The simulation is of the schedule. A verb that takes no
// time has no box.
inline constexpr std::size_t kMostBoxes = 24'000;  // a browser draws as many without effort
nlohmann::ordered_json schedule_block(const Schedule& schedule, const Simulation& simulation);

}  // namespace megalith
