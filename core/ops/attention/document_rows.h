// Rows of the documents of a pack: a [1, T, heads, D] tensor whose rows attend only among those of their own document.
#pragma once

#include <cstdint>

#include "core/tensor/tensor.h"

namespace megalith {

// Capacity C is fixed for the run. An unused entry has length 0 and repeats the end of the last document.
struct DocumentRows {
  Tensor begin;   // [C] int32, device: first row
  Tensor length;  // [C] int32, device: number of rows

  bool present() const { return begin.present() || length.present(); }
  explicit operator bool() const { return present(); }
};

// Rows of one document. The keys may differ from the queries without a causal mask.
struct DocumentSpan {
  std::int64_t first_query, queries, first_key, keys;
};

// Fails for a document read on the device: it leaves the `rows` rows of its tensor, is longer than max_length, or has
// unequal numbers of queries and keys under a causal mask.
[[noreturn]] void refuse_document(std::int64_t document, std::int64_t begin, std::int64_t length, std::int64_t rows);

}  // namespace megalith
