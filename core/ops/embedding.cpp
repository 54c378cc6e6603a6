#include "core/ops/embedding.h"

#include <fmt/format.h>

#include "core/ops/op_checks.h"

namespace megalith {

namespace {

void check_rows_per_sample(std::int64_t rows, Place place = Place::current()) {
  if (rows >= 1) return;
  fail({.subject = "op.rows_per_sample", .expected = "at least 1", .got = fmt::format("{}", rows)}, place);
}

void check_token_range(std::int64_t first, std::int64_t rows, std::int64_t vocabulary, Place place = Place::current()) {
  if (first == 0 && vocabulary == 0) return;
  if (first >= 0 && rows <= vocabulary - first) return;
  fail({.subject = "op.first_token and op.vocabulary",
        .expected = fmt::format("a range of {} tokens inside of the vocabulary", rows),
        .got = fmt::format("{} of {}", first, vocabulary)},
       place);
}

}  // namespace

void check(const EmbeddingForward& op) {
  check_rank(op.tokens, 1, "op.tokens");
  check_dtype(op.tokens, {DType::kInt32}, "op.tokens");
  check_contiguous(op.tokens, "op.tokens");
  check_rank(op.table, 2, "op.table");
  check_dtype(op.table, kFloatTypes, "op.table");
  check_contiguous(op.table, "op.table");
  check_shape(op.y, {op.tokens.size(0), op.table.size(1)}, "op.y");
  check_dtype(op.y, {op.table.dtype}, "op.y");
  check_contiguous(op.y, "op.y");
  check_no_overlap(op.table, "op.table", op.y, "op.y");
  check_token_range(op.first_token, op.table.size(0), op.vocabulary);
  check_rows_per_sample(op.rows_per_sample);
  check_part(op.part, op.rows_per_sample, "op.part");
  if (op.positions) {
    check_rank(op.positions, 2, "op.positions");
    check_shape(op.positions, {op.positions.size(0), op.table.size(1)}, "op.positions");
    check_dtype(op.positions, {op.table.dtype}, "op.positions");
    check_contiguous(op.positions, "op.positions");
    check_no_overlap(op.positions, "op.positions", op.y, "op.y");
  }
}

void access(const EmbeddingForward& op, Access& a) {
  a.reads(op.tokens);
  a.reads(op.table);
  a.reads(op.positions);
  if (op.positions) a.add(op.start, sizeof(std::int32_t), false);
  a.writes(op.y);
}

void check(const EmbeddingBackward& op) {
  check_rank(op.tokens, 1, "op.tokens");
  check_dtype(op.tokens, {DType::kInt32}, "op.tokens");
  check_contiguous(op.tokens, "op.tokens");
  check_rank(op.d_table, 2, "op.d_table");
  check_dtype(op.d_table, kFloatTypes, "op.d_table");
  if (op.d_table.dtype != DType::kFp32) check_dtype(op.dy, {op.d_table.dtype}, "op.dy");
  check_contiguous(op.d_table, "op.d_table");
  check_shape(op.dy, {op.tokens.size(0), op.d_table.size(1)}, "op.dy");
  check_dtype(op.dy, kFloatTypes, "op.dy");
  check_contiguous(op.dy, "op.dy");
  check_no_overlap(op.dy, "op.dy", op.d_table, "op.d_table");
  check_token_range(op.first_token, op.d_table.size(0), op.vocabulary);
  check_rows_per_sample(op.rows_per_sample);
  check_part(op.part, op.rows_per_sample, "op.part");
  if (op.d_positions) {
    check_rank(op.d_positions, 2, "op.d_positions");
    check_shape(op.d_positions, {op.d_positions.size(0), op.d_table.size(1)}, "op.d_positions");
    check_dtype(op.d_positions, {op.d_table.dtype}, "op.d_positions");
    check_contiguous(op.d_positions, "op.d_positions");
    check_no_overlap(op.d_positions, "op.d_positions", op.d_table, "op.d_table");
    check_no_overlap(op.d_positions, "op.d_positions", op.dy, "op.dy");
  }
}

void access(const EmbeddingBackward& op, Access& a) {
  a.reads(op.tokens);
  a.reads(op.dy);
  for (const Tensor* sum : {&op.d_table, &op.d_positions}) {
    a.reads(*sum);
    a.writes(*sum);
  }
}

}  // namespace megalith
