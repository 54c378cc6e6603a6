// Documents of samples that context-parallel ranks share (core/ops/sequence_part.h): each of C ranks has two chunks of
// L / (2 C) rows of a sample of L rows. A document is cut at their borders.
#pragma once

#include <cstdint>
#include <span>

namespace megalith {

// Rows [begin, end) of a document in its unsplit sample.
struct DocumentExtent {
  std::int64_t begin = 0, end = 0;
};

// Rows of one document on ranks, counted from the first of the rank's rows; 0 `queries` or `keys`: none.
struct DocumentBlock {
  std::int64_t first_query = 0, queries = 0, first_key = 0, keys = 0;
};

struct SharedSample {
  std::int64_t length = 0;  // L
  std::int64_t rank = 0, ranks = 1;
};

// Returns the part of a document on this rank. Both chunks' rows of a document are adjacent there, as it covers all
// between them.
DocumentBlock own_part(const DocumentExtent& document, const SharedSample& sample);

// Returns the one document that this rank's queries share with the keys of another rank, `owner`. All its queries see
// all these keys. `documents` are those of the sample, in order.
DocumentBlock shared_block(std::span<const DocumentExtent> documents, std::int64_t owner, const SharedSample& sample);

}  // namespace megalith
