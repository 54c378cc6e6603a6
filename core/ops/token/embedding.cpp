#include "core/ops/token/embedding.h"

#include <fmt/format.h>

#include "core/ops/data_faults.h"
#include "core/ops/fields.h"

namespace megalith {

namespace {

// What forward and backward share; `table` is the weights or their gradient.
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

// Of `table`, by as many tokens as `rows` has.
std::size_t bytes_of_rows(const Tensor& table, const Tensor& rows) {
  if (table.rank() != 2) return 0;  // which is refused
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
  constexpr std::size_t kSorterBytes = std::size_t{1} << 20;  // cub asks for two arrays and some tables
  const std::int64_t tokens = op.tokens.numel(), columns = op.d_table.size(1);
  const auto bytes = [&](std::int64_t chunk) {
    const std::int64_t sums = (tokens + chunk - 1) / chunk * 2 * columns;
    return kVerdictBytes + kSorterBytes + 6 * sizeof(std::int32_t) * static_cast<std::size_t>(tokens) +
           sizeof(float) * static_cast<std::size_t>(sums);
  };
  const std::size_t most = bytes(min_sorted_chunk(tokens));
  return most <= kEmbeddingWorkspaceBytes ? most : std::max(kEmbeddingWorkspaceBytes, bytes(kMaxSortedChunk));
}

}  // namespace megalith
