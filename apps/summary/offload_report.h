// Texts of plan, a run's start and pages about offloaded activations.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/cost/step_times.h"
#include "apps/run/step.h"
#include "apps/run/step_plan.h"
#include "core/base/text/table.h"
#include "offload/stats.h"

namespace megalith {

// Planned offload: slots, pinned memory, and savings of the device memory that training and evaluation share.
OffloadStats planned_offload(const StepPlans& plans);

// Measured offload of one rank's step, with the planned savings and those that the driver shows.
OffloadStats measured_offload(const StepPlans& plans, const StepResult& step, std::optional<std::size_t> driver_bytes,
                              std::size_t host_bytes = 0);
// For each stage, whose ranks are consecutive, the rank that waited longest for its copies, with the savings of the
// rank with the lowest R.
std::vector<OffloadStats> worst_of_stages(const std::vector<OffloadStats>& ranks, std::size_t stages);
// Text such as "6 slots, 12.00 MiB to the host in 1.20 ms and 12.00 back in 1.10, in a step of 100.00; ...".
std::string describe_measured(const OffloadStats& measured);

// Problem of the placement of ranks' memory on the host; empty: none is known.
std::string describe_misplaced(const std::vector<OffloadStats>& ranks);

// Layers as text such as "0-10,12".
std::string describe_layers(const std::vector<std::int64_t>& layers);

// Tables of offloaded and kept activations, with reasons and savings; `whose`: text such as " of stage 1". Empty
// without a request for offload.
std::vector<Table> offload_tables(const StepPlans& plans, const std::string& whose);
// Text about the step's copies; with rates also their times and waits. Empty if nothing moves.
std::string describe_copies(const StepPlans& plans, std::int64_t microbatches, const StepTimes* times,
                            const std::string& whose);
// Line for the start of a run: "12 slots, 96.00 MiB of a microbatch, ...".
std::string describe_offloading(const StepPlans& plans);

}  // namespace megalith
