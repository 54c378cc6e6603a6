#include "moe/ops/rank_rows.h"

#include "core/ops/fields.h"
#include "moe/ops/route_rows.h"
#include "moe/ops/router.h"

namespace megalith {

namespace {

constexpr std::int64_t kMaxRows = (std::int64_t{1} << 31) - 1;

// `table` has one column per rank.
void check_ranks(std::int64_t ranks, std::string_view table, const Shape& shape, std::int64_t copies, Fields& f) {
  f.expect(ranks >= 1 && ranks <= kMaxExperts, table, "1 to 1024 ranks", shape);
  f.expect(copies >= 1 && ranks % copies == 0, "op.copies", "a divisor of the number of ranks", copies);
}

void check_experts(std::int64_t each, std::int64_t parts, std::string_view name, Fields& f) {
  f.expect(each >= 1 && each <= kMaxRows / parts, name, "at least 1, and fewer than 2^31 in total", each);
}

void sends_in(const Tensor& sends, int rank, Fields& f) {
  const std::int64_t ranks = sends.size(0);
  f.in(sends, "op.sends").dtype(DType::kInt32).shape({ranks, ranks + 1});
  f.expect(ranks >= 1 && ranks <= kMaxExperts, "op.sends", "1 to 1024 ranks", sends.shape);
  f.expect(rank >= 0 && rank < ranks, "op.rank", "a rank of op.sends", std::int64_t{rank});
}

}  // namespace

void fields(const ChosenRanks& op, Fields& f) {
  f.in(op.choice, "op.choice").dtype(DType::kInt32).rank(2).read_if(!op.all);
  const std::int64_t ranks = op.ranks.size(1);
  f.out(op.ranks, "op.ranks").dtype(DType::kInt32).shape({op.choice.size(0), ranks});
  f.expect(op.ranks.numel() <= kMaxRows, "op.ranks", "fewer than 2^31 entries", op.ranks.shape);
  check_ranks(ranks, "op.ranks", op.ranks.shape, op.copies, f);
  check_experts(op.experts_per_rank, ranks / op.copies, "op.experts_per_rank", f);
}

void fields(const ArrivedRows& op, Fields& f) {
  sends_in(op.sends, op.rank, f);
  f.out(op.offsets, "op.offsets").dtype(DType::kInt32).shape({op.sends.size(1)});
  f.out(op.wanted, "op.wanted").dtype(DType::kInt32).shape({1});
  f.expect(op.room >= 0 && op.room <= kMaxRows, "op.room", "0 to 2^31 - 1", op.room);
}

void fields(const UnpermuteGroups& op, Fields& f) {
  f.expect(op.groups >= 1 && op.groups <= kMaxExperts, "op.groups", "1 to 1024", op.groups);
  check_experts(op.experts_per_group, op.groups, "op.experts_per_group", f);
  f.expect(op.first_expert >= 0 && op.first_expert <= kMaxRows - op.groups * op.experts_per_group, "op.first_expert",
           "0 to 2^31 minus the experts of all groups", op.first_expert);
  f.in(op.x, "op.x").floating().rank(2).bounded();
  f.in(op.position, "op.position").dtype(DType::kInt32).rank(2).bounded();
  f.expect(op.position.size(1) <= kMaxChoices, "op.position", "at most 16 choices of a token", op.position.shape);
  f.in(op.choice, "op.choice").dtype(DType::kInt32).shape(op.position.shape).rules.bound = op.position.bound;
  const std::int64_t columns = op.x.size(1);
  const std::int64_t parts = op.y.size(1) == columns ? 1 : op.groups;
  f.out(op.y, "op.y").dtype(op.x.dtype).shape({op.position.size(0), parts * columns}).rules.bound = op.position.bound;
}

void fields(const SumReturnedWeights& op, Fields& f) {
  f.in(op.choice, "op.choice").dtype(DType::kInt32).rank(2);
  f.expect(op.choice.numel() <= kMaxRows, "op.choice", "fewer than 2^31 entries", op.choice.shape);
  const std::int64_t tokens = op.choice.size(0), ranks = op.position.size(1);
  f.in(op.x, "op.x").dtype(DType::kFp32).shape({op.x.size(0), op.choice.size(1)}).bounded();
  f.in(op.position, "op.position").dtype(DType::kInt32).shape({tokens, ranks});
  check_ranks(ranks, "op.position", op.position.shape, op.copies, f);
  check_experts(op.experts_per_rank, ranks / op.copies, "op.experts_per_rank", f);
  f.out(op.d_weight, "op.d_weight").dtype(DType::kFp32).shape(op.choice.shape);
}

void fields(const RecordRoom& op, Fields& f) {
  f.in(op.arrived, "op.arrived").dtype(DType::kInt32).shape({1});
  f.in(op.rows, "op.rows").dtype(DType::kInt32).shape({1});
  f.inout(op.needed, "op.needed").dtype(DType::kInt32).shape({2});
}

void fields(const CountSentRows& op, Fields& f) {
  sends_in(op.sends, op.rank, f);
  f.inout(op.counts, "op.counts").dtype(DType::kInt32).shape({op.sends.size(0)});
}

}  // namespace megalith
