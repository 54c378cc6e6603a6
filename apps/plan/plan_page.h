// The HTML page of plan --html: what a run is forecast to take, with a picture of its schedule.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "apps/config/options.h"
#include "apps/forecast/forecast.h"
#include "parallel/cost/rates.h"
#include "parallel/pipeline_parallel/schedule.h"
#include "parallel/pipeline_parallel/simulator.h"

namespace megalith {

std::string plan_page(const Options& options, const Forecast& forecast, const Rates& rates);

// The picture of a schedule, as data of a page: a lane for each stage, a box for each verb of a microbatch; where a
// stage waits its lane's ground shows. The simulation is of the schedule. A verb that takes no time has no box.
inline constexpr std::size_t kMostBoxes = 24'000;  // a browser draws as many without effort
nlohmann::ordered_json schedule_block(const Schedule& schedule, const Simulation& simulation);

}  // namespace megalith
