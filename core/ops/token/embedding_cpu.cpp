#include <algorithm>

#include "core/ops/data_faults.h"
#include "core/ops/dispatch.h"
#include "core/ops/loops.h"
#include "core/ops/token/embedding.h"

namespace megalith {

namespace {

// Checks every index before any row is written, so that a bad batch leaves the output and the gradients alone.
template <class Op>
void check_indices(const Op& op, const Tensor& table, std::int64_t start, const Tensor& positions) {
  const auto* token = op.tokens.template as<const std::int32_t>();
  const std::int64_t vocabulary = op.vocabulary == 0 ? table.size(0) : op.vocabulary, rows = op.tokens.numel();
  for (std::int64_t row = 0; row < rows; ++row) {
    if (token[row] >= 0 && token[row] < vocabulary) continue;
    const std::int64_t values[] = {row, token[row], vocabulary};
    raise_bad_token(values);
  }
  const std::int64_t last = std::min(rows, op.rows_per_sample) - 1;
  const std::int64_t end = start + (last < 0 ? op.part.first : op.part.position(last, op.rows_per_sample) + 1);
  if (!positions || (start >= 0 && end <= positions.size(0))) return;
  const std::int64_t values[] = {start, end - 1, positions.size(0)};
  raise_bad_positions(values);
}

// The table's row of the token of `row`; null where that is of another rank's part.
template <class T, class Op>
T* table_row(const Op& op, const Tensor& table, std::int64_t row) {
  const std::int64_t local = op.tokens.template as<const std::int32_t>()[row] - op.first_token;
  return local >= 0 && local < table.size(0) ? table.as<T>() + local * table.size(1) : nullptr;
}

// The row of the position of `row`, which `start` is added to.
template <class T, class Op>
T* position_row(const Op& op, const Tensor& positions, std::int64_t row, std::int64_t start) {
  const std::int64_t at = start + op.part.position(row % op.rows_per_sample, op.rows_per_sample);
  return positions.as<T>() + at * positions.size(1);
}

// to += from
template <class From, class To>
void add_row(To* to, const From* from, std::int64_t columns) {
  for_each_element(columns, [to = Row(to), from = Row(from)](auto i) { to.set(i, to[i] + from[i]); });
}

// to += the sum of dy's rows that next(row) leads to from `row` on, taken in fp32.
template <class Next>
void add_rows_once(bf16* to, const Tensor& dy, std::int64_t row, Next next) {
  constexpr std::int64_t kTile = 1024;
  float sum[kTile];
  const std::int64_t rows = dy.size(0), columns = dy.size(1);
  for (std::int64_t first = 0; first < columns; first += kTile) {
    const std::int64_t count = std::min(kTile, columns - first);
    std::fill_n(sum, count, 0.0f);
    for (std::int64_t r = row; r < rows; r = next(r)) add_row(sum, dy.as<const bf16>() + r * columns + first, count);
    add_row(to + first, sum, count);
  }
}

// Looking for a token's rows costs a comparison per pair of rows, which the matrix products of so many rows dwarf.
void add_to_bf16(const EmbeddingBackward& op) {
  const std::int64_t rows = op.tokens.numel();
  const auto* token = op.tokens.as<const std::int32_t>();
  for (std::int64_t row = 0; row < rows; ++row) {
    bf16* to = table_row<bf16>(op, op.d_table, row);
    if (to == nullptr || std::find(token, token + row, token[row]) != token + row) continue;
    const auto next = [=](std::int64_t r) { return std::find(token + r + 1, token + rows, token[row]) - token; };
    add_rows_once(to, op.dy, row, next);
  }
  if (!op.d_positions) return;
  for (std::int64_t row = 0; row < std::min(rows, op.rows_per_sample); ++row) {
    const auto next = [&op](std::int64_t r) { return r + op.rows_per_sample; };
    add_rows_once(position_row<bf16>(op, op.d_positions, row, 0), op.dy, row, next);
  }
}

}  // namespace

void compute(const EmbeddingForward& op) {
  const std::int64_t columns = op.table.size(1), start = op.start != nullptr ? *op.start : 0;
  check_indices(op, op.table, start, op.positions);
  visit_float(op.table.dtype, [&]<class T>(T) {
    for (std::int64_t row = 0; row < op.tokens.numel(); ++row) {
      T* y = op.y.as<T>() + row * columns;
      if (const T* from = table_row<const T>(op, op.table, row)) {
        std::copy_n(from, columns, y);
      } else {
        std::fill_n(y, columns, from_float<T>(0));
      }
      if (op.positions) add_row(y, position_row<const T>(op, op.positions, row, start), columns);
    }
  });
}

void compute(const EmbeddingBackward& op) {
  check_indices(op, op.d_table, 0, op.d_positions);
  if (op.d_table.dtype == DType::kBf16) return add_to_bf16(op);
  const std::int64_t columns = op.d_table.size(1);
  visit_float(op.dy.dtype, [&]<class T>(T) {
    for (std::int64_t row = 0; row < op.tokens.numel(); ++row) {
      const T* dy = op.dy.as<const T>() + row * columns;
      if (float* to = table_row<float>(op, op.d_table, row)) add_row(to, dy, columns);
      if (op.d_positions) add_row(position_row<float>(op, op.d_positions, row, 0), dy, columns);
    }
  });
}

}  // namespace megalith
