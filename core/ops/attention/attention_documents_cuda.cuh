// Packed documents in CUDA kernels: lengths are device values, so that kernels check them.
#pragma once

#include <algorithm>

#include "core/device/cuda/fault.cuh"
#include "core/ops/attention/attention.h"

namespace megalith::cuda::attention {

inline void raise_bad_document(const std::int64_t* values) {
  refuse_document(values[0], values[1], values[2], values[3]);
}

// The documents of an op. Without a table, one document of all rows.
struct Documents {
  const std::int32_t *query_begin = nullptr, *query_length = nullptr, *key_begin = nullptr, *key_length = nullptr;
  int capacity = 0;
  std::int64_t queries = 0, keys = 0;  // rows of the tensors
  std::int64_t max_length = 0, window = 0;
  bool causal = true;
  CudaFault* fault = nullptr;
  CudaFault::Raise raise = raise_bad_document;

  Documents() = default;
  template <class Op>
  Documents(const Op& op, CudaFault* faults)
      : query_begin(op.query_documents.begin.template as<const std::int32_t>()),
        query_length(op.query_documents.length.template as<const std::int32_t>()),
        key_begin(op.key_documents.begin.template as<const std::int32_t>()),
        key_length(op.key_documents.length.template as<const std::int32_t>()),
        capacity(query_begin == nullptr ? 0 : static_cast<int>(op.query_documents.begin.numel())),
        queries(op.q.size(1)),
        keys(op.k.size(1)),
        max_length(op.max_length),
        window(op.window),
        causal(op.causal),
        fault(faults) {}

  __device__ DocumentSpan span(int c) const {
    if (query_begin == nullptr) return {0, queries, 0, keys};
    return {query_begin[c], query_length[c], key_begin[c], key_length[c]};
  }
  // Returns whether document c fits; otherwise reports it.
  __device__ bool fits(int c) const {
    const DocumentSpan d = span(c);
    const auto bad = [this](std::int64_t begin, std::int64_t length, std::int64_t rows) {
      return begin < 0 || length < 0 || length > max_length || begin + length > rows;
    };
    if (bad(d.first_query, d.queries, queries)) {
      report_fault(fault, raise, c, d.first_query, d.queries, queries);
      return false;
    }
    if (bad(d.first_key, d.keys, keys) || (causal && d.queries != d.keys)) {
      report_fault(fault, raise, c, d.first_key, d.keys, keys);
      return false;
    }
    return true;
  }
  // Finds, as a block, the document that has the row among its queries or its keys. Returns whether there is one and
  // all documents fit.
  __device__ bool find(std::int64_t row, bool among_keys, DocumentSpan& found) const {
    if (query_begin == nullptr) {
      found = span(0);
      return true;
    }
    __shared__ int first, misfits;
    if (threadIdx.x == 0) first = capacity, misfits = 0;
    __syncthreads();
    for (int c = static_cast<int>(threadIdx.x); c < capacity; c += static_cast<int>(blockDim.x)) {
      const DocumentSpan d = span(c);
      const std::int64_t at = row - (among_keys ? d.first_key : d.first_query);
      if (at >= 0 && at < (among_keys ? d.keys : d.queries)) atomicMin(&first, c);
      if (!fits(c)) misfits = 1;
    }
    __syncthreads();
    if (misfits != 0 || first == capacity) return false;
    found = span(first);
    return true;
  }
  struct Rows {
    std::int64_t first, count;
  };
  // Returns the keys that a query of the document sees.
  __device__ Rows seen_keys(const DocumentSpan& d, std::int64_t query) const {
    if (!causal) return {d.first_key, d.keys};
    const std::int64_t own = query - d.first_query + 1, count = window > 0 ? min(own, window) : own;
    return {d.first_key + own - count, count};
  }
  // Returns the queries that see a key of the document.
  __device__ Rows seeing_queries(const DocumentSpan& d, std::int64_t key) const {
    if (!causal) return {d.first_query, d.queries};
    const std::int64_t own = key - d.first_key, count = d.queries - own;
    return {d.first_query + own, window > 0 ? min(count, window) : count};
  }
};

}  // namespace megalith::cuda::attention
