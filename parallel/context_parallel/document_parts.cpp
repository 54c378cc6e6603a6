#include "parallel/context_parallel/document_parts.h"

#include <algorithm>

namespace megalith {

namespace {

// Rows of an extent in a chunk.
struct Overlap {
  std::int64_t begin, end;  // from the chunk's first row
  bool exists() const { return begin < end; }
};

Overlap overlap(const DocumentExtent& document, std::int64_t chunk, std::int64_t rows) {
  return {std::clamp<std::int64_t>(document.begin - chunk * rows, 0, rows),
          std::clamp<std::int64_t>(document.end - chunk * rows, 0, rows)};
}

// Rows of an extent on a rank.
Overlap rows_of_rank(const DocumentExtent& document, std::int64_t rank, const SharedSample& sample) {
  if (sample.ranks == 1) return {document.begin, document.end};
  const std::int64_t rows = sample.length / (2 * sample.ranks);
  const Overlap first = overlap(document, rank, rows), second = overlap(document, 2 * sample.ranks - 1 - rank, rows);
  return {first.exists() ? first.begin : rows + second.begin, second.exists() ? rows + second.end : first.end};
}

}  // namespace

DocumentBlock own_part(const DocumentExtent& document, const SharedSample& sample) {
  const Overlap rows = rows_of_rank(document, sample.rank, sample);
  if (!rows.exists()) return {};
  return {.first_query = rows.begin,
          .queries = rows.end - rows.begin,
          .first_key = rows.begin,
          .keys = rows.end - rows.begin};
}

// A lower rank's first chunk is ahead of both chunks of this rank, and its second one is after them. Both chunks of a
// higher rank lie between those of this rank. So one border separates keys from the queries that see them.
DocumentBlock shared_block(std::span<const DocumentExtent> documents, std::int64_t owner, const SharedSample& sample) {
  const std::int64_t rows = sample.length / (2 * sample.ranks);
  const bool is_lower = owner < sample.rank;
  const std::int64_t end_of_keys = (is_lower ? owner + 1 : 2 * sample.ranks - owner) * rows;
  const std::int64_t first_query = (is_lower ? sample.rank : 2 * sample.ranks - 1 - sample.rank) * rows;
  const auto crosses = [&](const DocumentExtent& document) {
    return document.begin < end_of_keys && document.end > first_query;
  };
  const auto found = std::ranges::find_if(documents, crosses);
  if (found == documents.end()) return {};
  const Overlap keys = rows_of_rank({found->begin, end_of_keys}, owner, sample);
  const Overlap queries = rows_of_rank({first_query, found->end}, sample.rank, sample);
  return {.first_query = queries.begin,
          .queries = queries.end - queries.begin,
          .first_key = keys.begin,
          .keys = keys.end - keys.begin};
}

}  // namespace megalith
