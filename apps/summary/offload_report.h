// What plan, a run's start and pages say of activations that move to the host.
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

// What is planned: slots, pinned memory, and savings of the device memory that training and evaluation share.
OffloadStats planned_offload(const StepPlans& plans);

// One rank's step, with the savings that were planned and those that the driver shows.
OffloadStats measured_offload(const StepPlans& plans, const StepResult& step, std::optional<std::size_t> driver_bytes,
                              std::size_t host_bytes = 0);
// Of each stage, whose ranks follow each other, the rank that waited for its copies the longest, with what the rank of
// the lowest R saves.
std::vector<OffloadStats> worst_of_stages(const std::vector<OffloadStats>& ranks, std::size_t stages);
// "6 slots, 12.00 MiB to the host in 1.20 ms and 12.00 back in 1.10, in a step of 100.00; computing waited ...".
std::string said_measured(const OffloadStats& measured);

// What is wrong with where ranks have their memory on the host; empty: nothing that is known.
std::string said_misplaced(const std::vector<OffloadStats>& ranks);

// Layers as "0-10,12".
std::string said_layers(const std::vector<std::int64_t>& layers);

// Tables of what moves and what stays, why, and what it saves; `whose` such as " of stage 1". Empty where nothing
// was asked for.
std::vector<Table> offload_tables(const StepPlans& plans, const std::string& whose);
// The step's copies; with rates also their times and the waits for them. Empty where nothing moves.
std::string said_copies(const StepPlans& plans, std::int64_t microbatches, const StepTimes* times,
                        const std::string& whose);
// One line for the start of a run: "12 slots, 96.00 MiB of a microbatch, ...".
std::string said_offload(const StepPlans& plans);

}  // namespace megalith
