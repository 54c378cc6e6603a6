// Which units of parameters a model's segments use.
#pragma once

#include <vector>

#include "core/model/gpt.h"
#include "fsdp/unshard_lowering.h"

namespace megalith {

// Of what stands before and behind the layers, where a stage has it.
std::vector<int> end_units(const GptModel& gpt);
bool is_head(const GptModel& gpt, int unit);
// Of each segment those that are not resident.
std::vector<SegmentUnits> units_of_segments(const GptModel& gpt);

}  // namespace megalith
