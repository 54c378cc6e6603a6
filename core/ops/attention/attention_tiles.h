// Tiles of the forward and backward attention kernels. For *_cpu.cpp files.
#pragma once

#include <cstdint>
#include <utility>

#include "core/ops/attention/attention.h"
#include "core/ops/gemm/micro_kernel.h"
#include "core/ops/gemm/tile_pack.h"
#include "core/ops/loops.h"

namespace megalith {

// Returns the op on the rows of one document: views, with lse and delta strided.
AttentionForward of_document(const AttentionForward& op, const DocumentSpan& document);
AttentionBackward of_document(const AttentionBackward& op, const DocumentSpan& document);

}  // namespace megalith

namespace megalith::attention {

inline constexpr int kKeyTile = 64;  // keys of a score tile; a multiple of kTileColumns

inline std::int64_t padded_dim(std::int64_t dim) { return round_up(dim, kTileColumns); }

// The rows of one head of one sample of a [B, S, heads, D] tensor.
template <class T>
struct HeadRows {
  T* data;
  std::int64_t stride, dim;

  HeadRows(const Tensor& x, std::int64_t sample, std::int64_t head)
      : data(x.as<T>() + sample * x.stride(0) + head * x.stride(2)), stride(x.stride(1)), dim(x.size(3)) {}

  Row<T> operator[](std::int64_t row) const { return data + row * stride; }
  Lines<T> lines(std::int64_t first, std::int64_t count) const { return {data + first * stride, stride, count, dim}; }
  // Sets row `row` to x factor.
  void store(std::int64_t row, const float* x, float factor) const {
    for_each_element(dim, [=, x = Row(x), out = (*this)[row]](auto d) { out.set(d, x[d] * factor); });
  }
};

// Loads the head's rows from `first` on as fp32, times `factor`, into rows of padded_dim.
template <class T>
void pack_scaled(const HeadRows<const T>& head, std::int64_t first, std::int64_t count, float factor, float* out) {
  const std::int64_t padded = padded_dim(head.dim);
  pack_rows(head.lines(first, count), padded, out, padded);
  for_each_element(count * padded, [=, x = Row(out)](auto i) { x.set(i, x[i] * factor); });
}

// Returns exp(x) for x <= 0, and NaN for NaN, so that broken inputs show.
inline F32x8 exp_of_score(F32x8 x) { return _mm256_or_ps(simd::exp_nonpositive(x), _mm256_cmp_ps(x, x, _CMP_UNORD_Q)); }

// c[i][j] (=|+=) sum over p < depth of a(i, p) b[p][j] for i < rows <= 6 and j < columns, rounded up to panels of 16.
struct Panels {
  std::int64_t rows, columns, depth;
  const float* a;
  const float* b;
  std::int64_t b_stride;
  float* c;
  std::int64_t c_stride;
  TileOutput output;
};

// Inlined: constant strides of a make short products (depth 64) about 7 % faster.
[[gnu::always_inline]] inline void multiply_panels(const Panels& p, std::int64_t row_stride, std::int64_t step) {
  for (std::int64_t j = 0; j < p.columns; j += kTileColumns) {
    multiply_rows(p.rows, p.depth, {p.a, row_stride, step}, p.b + j, p.b_stride, nullptr, p.c + j, p.c_stride,
                  p.output);
  }
}

// a is [rows, padded] row-major; common head dims have specialized code.
inline void multiply_dim_panels(const Panels& p, std::int64_t padded) {
  switch (padded) {
    case 32: return multiply_panels(p, 32, 1);
    case 64: return multiply_panels(p, 64, 1);
    case 128: return multiply_panels(p, 128, 1);
    default: return multiply_panels(p, padded, 1);
  }
}

// The statistics of one head of one sample of a [B, heads, S] tensor with stride 1 in S.
inline float* head_statistics(const Tensor& x, std::int64_t sample, std::int64_t head) {
  return x.as<float>() + sample * x.stride(0) + head * x.stride(1);
}

// Calls visit(op) for each document's op, or with the op itself if it has no documents.
template <class Op, class Visit>
void for_each_document(const Op& op, const Visit& visit) {
  if (!op.query_documents) return visit(op);
  const auto read = [&op](const DocumentRows& rows, std::int64_t c, std::int64_t available) {
    const std::int64_t begin = rows.begin.template as<const std::int32_t>()[c];
    const std::int64_t length = rows.length.template as<const std::int32_t>()[c];
    if (begin < 0 || length < 0 || length > op.max_length || begin + length > available)
      refuse_document(c, begin, length, available);
    return std::pair{begin, length};
  };
  for (std::int64_t c = 0; c < op.query_documents.length.numel(); ++c) {
    const auto [first_query, queries] = read(op.query_documents, c, op.q.size(1));
    const auto [first_key, keys] = read(op.key_documents, c, op.k.size(1));
    if (op.causal && queries != keys) refuse_document(c, first_key, keys, op.k.size(1));
    if (queries == 0 && keys == 0) continue;
    visit(of_document(op, {.first_query = first_query, .queries = queries, .first_key = first_key, .keys = keys}));
  }
}

}  // namespace megalith::attention
