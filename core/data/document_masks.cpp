#include "core/data/document_masks.h"

#include <algorithm>

#include "core/base/error.h"

namespace megalith {

void mark_sample(std::span<const std::int32_t> tokens, const DocumentMasks& masks, SampleMarks& marks) {
  require(tokens.size() > 1, "mark_sample: no tokens");
  const std::span<const std::int32_t> inputs = tokens.first(tokens.size() - 1);
  marks.trained.assign(inputs.size(), 1);
  if (masks.eod_mask_loss)
    std::ranges::transform(inputs, marks.trained.begin(), [&](std::int32_t token) { return token != masks.eod; });
  if (masks.inter_document_masking) return;
  marks.documents.clear();
  const bool splits = masks.reset_position_ids || masks.reset_attention_mask;
  for (auto begin = inputs.begin(); begin != inputs.end();) {
    auto end = splits ? std::find(begin, inputs.end(), masks.eod) : inputs.end();
    if (end != inputs.end()) ++end;  // EOD itself
    const auto rows = static_cast<std::int32_t>(end - begin);
    marks.documents.push_back({.rows = rows, .tokens = rows});
    begin = end;
  }
}

}  // namespace megalith
