#include "fsdp/model_units.h"

#include <algorithm>

namespace megalith {

std::vector<int> end_units(const GptModel& gpt) {
  std::vector<int> units;
  for (const NamedSegment& segment : gpt.segments) {
    if (segment.module == SegmentModule::kEmbedding || segment.module == SegmentModule::kHead)
      units.push_back(segment.first_unit);
  }
  return units;
}

bool is_head(const GptModel& gpt, int unit) {
  return std::ranges::any_of(gpt.segments, [unit](const NamedSegment& segment) {
    return segment.module == SegmentModule::kHead && segment.first_unit == unit;
  });
}

std::vector<SegmentUnits> units_of_segments(const GptModel& gpt) {
  std::vector<SegmentUnits> segments;
  for (const NamedSegment& segment : gpt.segments) {
    SegmentUnits& used = segments.emplace_back();
    for (int u = segment.first_unit; u <= segment.last_unit; ++u) {
      const ParameterUnit& unit = gpt.parameters->units()[static_cast<std::size_t>(u)];
      if (!unit.resident_weights) used.weights.push_back(u);
      if (!unit.resident_gradients) used.gradients.push_back(u);
    }
    used.forward_alone = segment.module == SegmentModule::kEmbedding;
  }
  return segments;
}

}  // namespace megalith
