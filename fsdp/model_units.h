// Units of parameters that a model's segments use.
#pragma once

#include <vector>

#include "core/model/gpt.h"
#include "fsdp/unshard_lowering.h"

namespace megalith {

// Units of the embedding and the head, on a stage that has them.
std::vector<int> end_units(const GptModel& gpt);
bool is_head(const GptModel& gpt, int unit);
// Sharded units of each segment; resident units are left out.
std::vector<SegmentUnits> units_of_segments(const GptModel& gpt);

}  // namespace megalith
