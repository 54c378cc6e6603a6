#include "core/ops/token/embedding.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/ops/data_faults.h"
#include "core/ops/dispatch.h"
#include "core/ops/fields.h"
#include "core/ops/loops.h"

namespace megalith {

namespace {

// Declares the fields of forward and backward; `table` is the weights or their gradient.
template <class Op>
void check_places(const Op& op, const Tensor& table, Fields& f) {
  const std::int64_t rows = table.size(0);
  if ((op.first_token != 0 || op.vocabulary != 0) && (op.first_token < 0 || rows > op.vocabulary - op.first_token)) {
    fail({.subject = "op.first_token and op.vocabulary",
          .expected = fmt::format("a range of {} tokens inside of the vocabulary", rows),
          .got = fmt::format("{} of {}", op.first_token, op.vocabulary)});
  }
  f.expect(op.rows_per_sample >= 1, "op.rows_per_sample", "at least 1", op.rows_per_sample);
  check_part(op.part, op.rows_per_sample, "op.part");
}

// Returns the bytes of as many rows of `table` as `rows` has tokens.
std::size_t bytes_of_rows(const Tensor& table, const Tensor& rows) {
  if (table.rank() != 2) return 0;  // rejected by check()
  return static_cast<std::size_t>(std::min(rows.size(0), table.size(0)) * table.size(1)) * size_of(table.dtype);
}

}  // namespace

void fields(const EmbeddingForward& op, Fields& f) {
  f.in(op.tokens, "op.tokens").dtype(DType::kInt32).rank(1);
  f.in(op.table, "op.table").floating().rank(2).moves(bytes_of_rows(op.table, op.tokens));
  f.in(op.positions, "op.positions")
      .dtype(op.table.dtype)
      .shape({op.positions.size(0), op.table.size(1)})
      .moves(bytes_of_rows(op.positions, op.tokens))
      .optional();
  if (op.positions) f.in(op.start, "op.start").optional();
  f.workspace(op.workspace);
  f.out(op.y, "op.y").dtype(op.table.dtype).shape({op.tokens.size(0), op.table.size(1)});
  check_places(op, op.table, f);
}

std::size_t workspace_bytes(const EmbeddingForward&, DeviceType device) {
  return device == DeviceType::kCuda ? kVerdictBytes : 0;
}

void fields(const EmbeddingBackward& op, Fields& f) {
  f.in(op.tokens, "op.tokens").dtype(DType::kInt32).rank(1);
  f.inout(op.d_table, "op.d_table").floating().rank(2).moves(bytes_of_rows(op.d_table, op.tokens));
  const DTypeSet dtypes = op.d_table.dtype == DType::kFp32 ? kFloatTypes : DTypeSet{op.d_table.dtype};
  const std::int64_t columns = op.d_table.size(1);
  f.in(op.dy, "op.dy").dtype(dtypes).shape({op.tokens.size(0), columns});
  f.inout(op.d_positions, "op.d_positions")
      .dtype(op.d_table.dtype)
      .shape({op.d_positions.size(0), columns})
      .moves(bytes_of_rows(op.d_positions, op.tokens))
      .optional();
  f.workspace(op.workspace);
  check_places(op, op.d_table, f);
}

std::size_t workspace_bytes(const EmbeddingBackward& op, DeviceType device) {
  if (device != DeviceType::kCuda) return 0;
  constexpr std::size_t kSorterBytes = std::size_t{1} << 20;  // cub requires two arrays and some tables
  const std::int64_t tokens = op.tokens.numel(), columns = op.d_table.size(1);
  const auto bytes = [&](std::int64_t chunk) {
    const std::int64_t sums = (tokens + chunk - 1) / chunk * 2 * columns;
    return kVerdictBytes + kSorterBytes + 6 * sizeof(std::int32_t) * static_cast<std::size_t>(tokens) +
           sizeof(float) * static_cast<std::size_t>(sums);
  };
  const std::size_t most = bytes(min_sorted_chunk(tokens));
  return most <= kEmbeddingWorkspaceBytes ? most : std::max(kEmbeddingWorkspaceBytes, bytes(kMaxSortedChunk));
}

namespace {

// Checks every index ahead of the first write, so that a bad batch leaves outputs and gradients unchanged.
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

// Returns the table's row of the token of `row`; null if another rank holds it.
template <class T, class Op>
T* table_row(const Op& op, const Tensor& table, std::int64_t row) {
  const std::int64_t local = op.tokens.template as<const std::int32_t>()[row] - op.first_token;
  return local >= 0 && local < table.size(0) ? table.as<T>() + local * table.size(1) : nullptr;
}

// Returns the row of the position of `row` plus `start`.
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

// to += the sum in fp32 of dy's rows along next(row), from `row` on.
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

// Finding a token's rows costs a comparison per pair of rows, little against the GEMMs of these rows.
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
