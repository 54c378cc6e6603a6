// Tables of packed documents for cuDNN, and the rows that it skips. Latency-bound: one block, or one block a row.
#include "core/ops/attention/attention_packed_cuda.h"

#include <algorithm>

#include "core/ops/attention/attention_rows_cuda.cuh"

namespace megalith {

namespace {

using namespace cuda;
using namespace cuda::attention;

struct TableArguments {
  Documents documents;
  std::int32_t *query_lengths, *key_lengths;
  std::int64_t* first_elements;  // [kTensors, entries]
  std::int64_t entries;
  std::int64_t strides[PackedTables::kTensors];
  std::uint32_t of_keys;  // bit i: tensor i has the rows of the keys
};

__device__ void write_tables(const TableArguments& a) {
  __shared__ int misfits;
  const int begin = static_cast<int>(threadIdx.x), capacity = a.documents.capacity;
  start_early();
  if (begin == 0) misfits = 0;
  __syncthreads();
  for (int c = begin; c < capacity; c += kThreads) {
    if (!a.documents.fits(c)) misfits = 1;
  }
  __syncthreads();
  const bool is_empty = misfits != 0;
  for (int c = begin; c <= capacity; c += kThreads) {
    DocumentSpan d{};
    if (!is_empty) {
      d = a.documents.span(min(c, capacity - 1));
      if (c == capacity) d = {d.first_query + d.queries, 0, d.first_key + d.keys, 0};
    }
    if (c < capacity) {
      a.query_lengths[c] = static_cast<std::int32_t>(d.queries);
      a.key_lengths[c] = static_cast<std::int32_t>(d.keys);
    }
#pragma unroll
    for (int i = 0; i < PackedTables::kTensors; ++i)
      a.first_elements[i * a.entries + c] = ((a.of_keys >> i & 1) != 0 ? d.first_key : d.first_query) * a.strides[i];
  }
}

__global__ void __launch_bounds__(kThreads) attention_forward_tables_kernel(const TableArguments a) { write_tables(a); }
__global__ void __launch_bounds__(kThreads) attention_backward_tables_kernel(const TableArguments a) {
  write_tables(a);
}

template <class Op>
void write(CudaStream& stream, const Op& op, const TokenStrides& strides, void (*kernel)(TableArguments)) {
  const PackedTables tables = PackedTables::of(op.query_documents);
  auto* const at = op.workspace.template as<std::byte>();
  constexpr std::uint32_t kOfKeys = 0b110000110;  // k, v, dk and dv of the order in AttentionUid
  TableArguments a{.documents = Documents(op, stream.fault()),
                   .query_lengths = reinterpret_cast<std::int32_t*>(at + tables.query_lengths),
                   .key_lengths = reinterpret_cast<std::int32_t*>(at + tables.key_lengths),
                   .first_elements = reinterpret_cast<std::int64_t*>(at + tables.first_elements),
                   .entries = tables.entries,
                   .strides = {},
                   .of_keys = kOfKeys};
  std::copy(strides.begin(), strides.end(), a.strides);
  launch_early(stream, {1, kThreads}, kernel, a);
}

struct RowArguments {
  Documents documents;
  bool among_keys;
  Heads<bf16> x, y;  // results of the rows
  float* lse;        // optional
  int heads, dim;
};

// A block owns a row. It writes zeros, and lse -inf, if the row's document has no rows on the other side.
__device__ void write_row(const RowArguments& a) {
  start_early();
  const std::int64_t row = blockIdx.x;
  DocumentSpan d;
  if (!a.documents.find(row, a.among_keys, d) || (a.among_keys ? d.queries : d.keys) > 0) return;
  for (int i = static_cast<int>(threadIdx.x); i < a.heads * a.dim; i += kThreads) {
    a.x.row(0, row, i / a.dim)[i % a.dim] = narrow<bf16>(0.0f);
    a.y.row(0, row, i / a.dim)[i % a.dim] = narrow<bf16>(0.0f);
  }
  if (a.lse == nullptr) return;
  for (int n = static_cast<int>(threadIdx.x); n < a.heads; n += kThreads) {
    a.lse[n * a.documents.queries + row] = -INFINITY;
  }
}

__global__ void __launch_bounds__(kThreads) attention_forward_alone_kernel(const RowArguments a) { write_row(a); }
__global__ void __launch_bounds__(kThreads) attention_backward_alone_kernel(const RowArguments a) { write_row(a); }

template <class Op>
RowArguments rows_of(CudaStream& stream, const Op& op, bool among_keys, const Tensor& x, const Tensor& y, float* lse) {
  return {.documents = Documents(op, stream.fault()),
          .among_keys = among_keys,
          .x = x,
          .y = y,
          .lse = lse,
          .heads = static_cast<int>(x.size(2)),
          .dim = static_cast<int>(x.size(3))};
}

}  // namespace

void write_tables(CudaStream& stream, const AttentionForward& op, const TokenStrides& strides) {
  write(stream, op, strides, attention_forward_tables_kernel);
}
void write_tables(CudaStream& stream, const AttentionBackward& op, const TokenStrides& strides) {
  write(stream, op, strides, attention_backward_tables_kernel);
}

void write_rows_without_partner(CudaStream& stream, const AttentionForward& op) {
  launch_early(stream, {blocks_for(op.q.size(1), 1), kThreads}, attention_forward_alone_kernel,
               rows_of(stream, op, false, op.out, op.out, op.lse.as<float>()));
}
void write_rows_without_partner(CudaStream& stream, const AttentionBackward& op) {
  launch_early(stream, {blocks_for(op.q.size(1), 1), kThreads}, attention_backward_alone_kernel,
               rows_of(stream, op, false, op.dq, op.dq, nullptr));
  launch_early(stream, {blocks_for(op.k.size(1), 1), kThreads}, attention_backward_alone_kernel,
               rows_of(stream, op, true, op.dk, op.dv, nullptr));
}

}  // namespace megalith
