// Masks of pretraining samples that span several documents, as in Megatron-LM.
#pragma once

#include <cstdint>
#include <span>

#include "core/data/sample_marks.h"

namespace megalith {

// Flags of masks. EOD belongs to the document that it ends.
struct DocumentMasks {
  bool reset_position_ids = false;      // positions restart after an EOD token
  bool reset_attention_mask = false;    // no attention beyond an EOD token
  bool eod_mask_loss = false;           // no loss where the input token is EOD
  bool inter_document_masking = false;  // documents end where those of the index do; positions restart there
  std::int32_t eod = -1;                // token that ends documents

  bool any() const { return reset_position_ids || reset_attention_mask || eod_mask_loss || inter_document_masking; }
  bool restarts_positions() const { return reset_position_ids || inter_document_masking; }
  bool ends_at_eod() const { return (reset_position_ids || reset_attention_mask) && !inter_document_masking; }
  bool separates_documents() const { return reset_attention_mask || inter_document_masking; }
};

// Marks a sample of seq_length + 1 tokens. Its documents end after EOD tokens, unless inter_document_masking has
// filled marks.documents from the index. The last token is a label only.
void mark_sample(std::span<const std::int32_t> tokens, const DocumentMasks& masks, SampleMarks& marks);

}  // namespace megalith
