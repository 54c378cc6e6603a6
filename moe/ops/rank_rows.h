// Ops for expert parallelism: from chosen experts to their ranks, rows that arrive there, and the way back.
// Deterministic. An out-of-range table entry (choice, position, sends) is an Error at the next synchronization of the
// stream.
//   T: tokens, K: choices of a token, H: hidden size, P: ranks; `copies` adjacent ranks hold the same experts, in parts
//   M: capacity for sent rows, R: capacity for rows of experts
//   sends [P, P + 1]: rank s sends rows sends[s, p] to sends[s, p + 1] to rank p
#pragma once

#include <cstdint>

#include "core/ops/op_declaration.h"

namespace megalith {

// ranks[t, p] = p if `all` is set, or if t chose one of p's experts; else -1. Rank p holds experts_per_rank experts
// from (p / copies) experts_per_rank on. ExpertOffsets then orders sent rows as it orders experts' rows.
struct ChosenRanks {
  MEGALITH_OP(ChosenRanks, "chosen_ranks");
  Tensor choice;  // [T, K] int32; -1: none
  Tensor ranks;   // [T, P] int32 out
  std::int64_t experts_per_rank = 0;
  std::int64_t copies = 1;
  bool all = false;  // `choice` is not read
};

// Rows of rank s arrive at offsets[s] to offsets[s + 1]. wanted = sum over s of sends[s, rank + 1] - sends[s, rank].
// Rows beyond `room` are cut off.
struct ArrivedRows {
  MEGALITH_OP(ArrivedRows, "arrived_rows");
  Tensor sends;    // [P, P + 1] int32
  Tensor offsets;  // [P + 1] int32 out; the last entry is the bound of arrived rows
  Tensor wanted;   // [1] int32 out
  int rank = 0;
  std::int64_t room = 0;
};

// Sums a token's rows by group; choice c is in group (c - first_expert) / experts_per_group, of `groups` (S) groups. A
// group's sum over k, ascending, of x[position[t, k]] is in fp32, rounded to the dtype of x. Position -1 adds nothing.
// y [T, S H]: the sum of group g is in columns from g H on. y [T, H]: the sums are added, ascending, in fp32, and
// rounded once. UnpermuteRows on the separate sums gives equal bits.
struct UnpermuteGroups {
  MEGALITH_OP(UnpermuteGroups, "unpermute_groups");
  Tensor x;         // [R, H] bf16 | fp32, bounded
  Tensor position;  // [T, K] int32, bounded; K <= kMaxChoices (router.h)
  Tensor choice;    // [T, K] int32, bounded as position; not read if position is -1
  Tensor y;         // [T, H] or [T, S H] out, dtype of x, bounded as position
  std::int64_t experts_per_group = 0;
  std::int64_t first_expert = 0;
  std::int64_t groups = 1;
};

// Sums returned weight gradients: d_weight[t, k] = sum over j < copies, ascending, of x[position[t, choice[t, k] /
// experts_per_rank copies + j], k]. Positions -1 add nothing; choice -1 gives 0.
struct SumReturnedWeights {
  MEGALITH_OP(SumReturnedWeights, "sum_returned_weights");
  Tensor x;         // [M, K] fp32, bounded
  Tensor choice;    // [T, K] int32
  Tensor position;  // [T, P] int32: row of a token among those sent to p; -1: none
  Tensor d_weight;  // [T, K] fp32 out
  std::int64_t experts_per_rank = 0;
  std::int64_t copies = 1;
};

// needed = elementwise max(needed, {arrived, rows}).
struct RecordRoom {
  MEGALITH_OP(RecordRoom, "record_room");
  Tensor arrived;  // [1] int32: `wanted` of ArrivedRows
  Tensor rows;     // [1] int32: `wanted` of ExpertOffsets
  Tensor needed;   // [2] int32 in and out
};

// counts[p] += sends[rank, p + 1] - sends[rank, p].
struct CountSentRows {
  MEGALITH_OP(CountSentRows, "count_sent_rows");
  Tensor sends;   // [P, P + 1] int32
  Tensor counts;  // [P] int32 in and out
  int rank = 0;
};

}  // namespace megalith
