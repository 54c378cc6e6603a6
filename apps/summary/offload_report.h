// What plan, a run's start and pages say of activations that move to the host.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/cost/step_times.h"
#include "apps/run/step.h"
#include "apps/run/step_plan.h"
#include "core/device/memory_node.h"

namespace megalith {

// Of the device memory that training and evaluation share, against a run that keeps all.
struct OffloadSaving {
  double theory = 0;                                                   // bytes: what is alive at the fullest moments
  double realised = 0;                                                 // bytes: what the blocks take
  double ratio() const { return theory > 0 ? realised / theory : 1; }  // R
};
OffloadSaving saving_of(const StepPlans& plans);

// Of one rank: a step's copies, beside what was planned and what the driver says.
struct OffloadMeasured {
  std::int64_t slots = 0;
  std::int64_t bytes_out = 0, bytes_back = 0;
  std::int64_t host_bytes = 0;  // taken
  bool timed = false;
  CopyTimes times;     // where it is, as the next two
  MemoryNodes nodes;   // of the memory on the host
  int near_node = -1;  // of the GPU; -1: none, or not known
  double step_seconds = 0;
  OffloadSaving saving;
  // What the step's memory takes less by the driver than a run that keeps all would by its plan; below zero where
  // something else hid it, as on the CPU.
  double driver_saving = -1;
};
OffloadMeasured measured_offload(const StepPlans& plans, const StepResult& step,
                                 std::optional<std::size_t> driver_bytes, std::size_t host_bytes = 0);
// Of each stage, whose ranks follow each other, the rank that waited for its copies the longest, with what the rank of
// the lowest R saves.
std::vector<OffloadMeasured> worst_of_stages(const std::vector<OffloadMeasured>& ranks, std::size_t stages);
// "6 slots, 12.00 MiB to the host in 1.20 ms and 12.00 back in 1.10, in a step of 100.00; computing waited ...".
std::string said_measured(const OffloadMeasured& measured);

// What is wrong with where ranks have their memory on the host; empty: nothing that is known.
std::string said_misplaced(const std::vector<OffloadMeasured>& ranks);

// Layers as "0-10,12".
std::string said_layers(const std::vector<std::int64_t>& layers);

// The table of what moves and what stays, why, and what it saves; `whose` such as " of stage 1". Empty where nothing
// was asked for.
std::string printed_offload(const StepPlans& plans, const std::string& whose);
// The step's copies; with rates also their times and the waits for them. Empty where nothing moves.
std::string printed_copies(const StepPlans& plans, std::int64_t microbatches, const StepTimes* times,
                           const std::string& whose);
// One line for the start of a run: "12 slots, 96.00 MiB of a microbatch, ...".
std::string said_offload(const StepPlans& plans);

}  // namespace megalith
