#include <algorithm>

#include "core/ops/data_faults.h"
#include "core/ops/dispatch.h"
#include "core/ops/embedding.h"
#include "core/ops/loops.h"

namespace megalith {

namespace {

// Checks every index before any row is written, so that a bad batch leaves the output and the gradients alone.
void check_tokens(const Tensor& tokens, std::int64_t vocabulary) {
  const auto* token = tokens.as<const std::int32_t>();
  for (std::int64_t row = 0; row < tokens.numel(); ++row) {
    if (token[row] >= 0 && token[row] < vocabulary) continue;
    const std::int64_t values[] = {row, token[row], vocabulary};
    raise_bad_token(values);
  }
}

template <class Op>
void check_positions(const Op& op, std::int64_t start, const Tensor& positions) {
  const std::int64_t last = std::min(op.tokens.numel(), op.rows_per_sample) - 1;
  const std::int64_t end = start + (last < 0 ? op.part.first : op.part.position(last, op.rows_per_sample) + 1);
  if (!positions || (start >= 0 && end <= positions.size(0))) return;
  const std::int64_t values[] = {start, end - 1, positions.size(0)};
  raise_bad_positions(values);
}

std::int64_t vocabulary_of(std::int64_t vocabulary, const Tensor& table) {
  return vocabulary == 0 ? table.size(0) : vocabulary;
}

// to += from
template <class From, class To>
void add_row(To* to, const From* from, std::int64_t columns) {
  for_each_element(columns, [to = Row(to), from = Row(from)](auto i) { to.set(i, to[i] + from[i]); });
}

template <class T>
void embedding_forward(const EmbeddingForward& op) {
  const std::int64_t rows = op.tokens.numel();
  const std::int64_t columns = op.table.size(1);
  const std::int64_t start = op.start != nullptr ? *op.start : 0;
  check_tokens(op.tokens, vocabulary_of(op.vocabulary, op.table));
  check_positions(op, start, op.positions);
  const auto* token = op.tokens.as<const std::int32_t>();
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t local = token[row] - op.first_token;
    const bool here = local >= 0 && local < op.table.size(0);
    T* y = op.y.as<T>() + row * columns;
    if (here) {
      std::copy_n(op.table.as<const T>() + local * columns, columns, y);
    } else {
      std::fill_n(y, columns, from_float<T>(0));
    }
    if (!op.positions) continue;
    const std::int64_t at = start + op.part.position(row % op.rows_per_sample, op.rows_per_sample);
    add_row(y, op.positions.as<const T>() + at * columns, columns);
  }
}

// to += the sum of dy's rows that next(row) leads to from `row` on, taken in fp32.
template <class Next>
void add_rows_once(bf16* to, const bf16* dy, std::int64_t columns, std::int64_t row, std::int64_t rows, Next next) {
  constexpr std::int64_t kTile = 1024;
  float sum[kTile];
  for (std::int64_t first = 0; first < columns; first += kTile) {
    const std::int64_t count = std::min(kTile, columns - first);
    std::fill_n(sum, count, 0.0f);
    for (std::int64_t r = row; r < rows; r = next(r)) add_row(sum, dy + r * columns + first, count);
    add_row(to + first, sum, count);
  }
}

// Looking for a token's rows costs a comparison per pair of rows, which the matrix products of so many rows dwarf.
void embedding_backward_bf16(const EmbeddingBackward& op) {
  const std::int64_t rows = op.tokens.numel();
  const std::int64_t columns = op.d_table.size(1);
  const auto* token = op.tokens.as<const std::int32_t>();
  const bf16* dy = op.dy.as<const bf16>();
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t local = token[row] - op.first_token;
    if (local < 0 || local >= op.d_table.size(0)) continue;
    if (std::find(token, token + row, token[row]) != token + row) continue;
    const auto next = [=](std::int64_t r) { return std::find(token + r + 1, token + rows, token[row]) - token; };
    add_rows_once(op.d_table.as<bf16>() + local * columns, dy, columns, row, rows, next);
  }
  if (!op.d_positions) return;
  for (std::int64_t row = 0; row < std::min(rows, op.rows_per_sample); ++row) {
    const auto next = [&op](std::int64_t r) { return r + op.rows_per_sample; };
    const std::int64_t at = op.part.position(row, op.rows_per_sample);
    add_rows_once(op.d_positions.as<bf16>() + at * columns, dy, columns, row, rows, next);
  }
}

template <class T>
void embedding_backward(const EmbeddingBackward& op) {
  const std::int64_t rows = op.tokens.numel();
  const std::int64_t columns = op.d_table.size(1);
  check_tokens(op.tokens, vocabulary_of(op.vocabulary, op.d_table));
  check_positions(op, 0, op.d_positions);
  if (op.d_table.dtype == DType::kBf16) return embedding_backward_bf16(op);
  const auto* token = op.tokens.as<const std::int32_t>();
  for (std::int64_t row = 0; row < rows; ++row) {
    const T* dy = op.dy.as<const T>() + row * columns;
    const std::int64_t local = token[row] - op.first_token;
    if (local >= 0 && local < op.d_table.size(0)) add_row(op.d_table.as<float>() + local * columns, dy, columns);
    if (!op.d_positions) continue;
    const std::int64_t at = op.part.position(row % op.rows_per_sample, op.rows_per_sample);
    add_row(op.d_positions.as<float>() + at * columns, dy, columns);
  }
}

}  // namespace

void run(CpuStream& stream, const EmbeddingForward& op) {
  stream.enqueue([op] { visit_float(op.table.dtype, [&op](auto type) { embedding_forward<decltype(type)>(op); }); });
}

void run(CpuStream& stream, const EmbeddingBackward& op) {
  stream.enqueue([op] { visit_float(op.dy.dtype, [&op](auto type) { embedding_backward<decltype(type)>(op); }); });
}

}  // namespace megalith
