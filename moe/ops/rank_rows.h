// From the experts that tokens chose to the ranks that have them, what arrives there, and back (expert parallelism).
// Deterministic. An entry of a table (choice, position, sends) that is out of range is an Error, which surfaces at the
// stream's next synchronise.
//   T: tokens, K: choices a token, H: hidden size, P: ranks, of which `copies` neighbours have the same experts, each a
//   part of them; M: room for rows sent, R: room for rows of experts; sends [P, P + 1]: rows sends[s, p] to
//   sends[s, p + 1] of those that rank s sends are for rank p
#pragma once

#include <cstdint>

#include "core/ops/op_declaration.h"

namespace megalith {

// ranks[t, p] = p where `all`, or where some choice of t is one of p's experts, the experts_per_rank ones from
// (p / copies) experts_per_rank on; else -1. So ExpertOffsets orders what is sent as it orders the rows of experts.
struct ChosenRanks {
  static constexpr const char* kName = "chosen_ranks";
  Tensor choice;  // [T, K] int32; -1: none
  Tensor ranks;   // [T, P] int32 out
  std::int64_t experts_per_rank = 0;
  std::int64_t copies = 1;
  bool all = false;  // choice is not read
};

// Rows of rank s are at offsets[s] to offsets[s + 1] of what arrives at `rank`, as far as there is room: of
// sum over s of sends[s, rank + 1] - sends[s, rank], which are wanted, the first `room`.
struct ArrivedRows {
  static constexpr const char* kName = "arrived_rows";
  Tensor sends;    // [P, P + 1] int32
  Tensor offsets;  // [P + 1] int32 out; the last: the bound of what arrived
  Tensor wanted;   // [1] int32 out
  int rank = 0;
  std::int64_t room = 0;
};

// Group g of choice c = (c - first_expert) / experts_per_group, of `groups` (S). Of each the sum over k, ascending, of
// x[position[t, k]], in fp32, rounded to the dtype of x; choices of position -1 add nothing. With y [T, S H] the sums
// stand apart, that of group g in columns from g H on; with y [T, H] they are added, ascending, in fp32, and the total
// is rounded: the same bits as UnpermuteRows makes of parts that stood apart.
struct UnpermuteGroups {
  static constexpr const char* kName = "unpermute_groups";
  Tensor x;         // [R, H] bf16 | fp32, bounded
  Tensor position;  // [T, K] int32, bounded; K <= kMaxChoices (router.h)
  Tensor choice;    // [T, K] int32, bounded as position; not looked at where position is -1
  Tensor y;         // [T, H] or [T, S H] out, dtype of x, bounded as position
  std::int64_t experts_per_group = 0;
  std::int64_t first_expert = 0;
  std::int64_t groups = 1;
};

// What ranks know of the weights' gradients, back at the tokens: d_weight[t, k] = sum over j < copies, ascending, of
// x[position[t, choice[t, k] / experts_per_rank copies + j], k] but for positions of -1; 0 for a choice of -1.
struct SumReturnedWeights {
  static constexpr const char* kName = "sum_returned_weights";
  Tensor x;         // [M, K] fp32, bounded
  Tensor choice;    // [T, K] int32
  Tensor position;  // [T, P] int32: the row of a token among those sent to p; -1: none
  Tensor d_weight;  // [T, K] fp32 out
  std::int64_t experts_per_rank = 0;
  std::int64_t copies = 1;
};

// needed = max(needed, {arrived, rows}), each by itself.
struct RecordRoom {
  static constexpr const char* kName = "record_room";
  Tensor arrived;  // [1] int32: `wanted` of ArrivedRows
  Tensor rows;     // [1] int32: `wanted` of ExpertOffsets
  Tensor needed;   // [2] int32 in and out
};

// counts[p] += sends[rank, p + 1] - sends[rank, p].
struct CountSentRows {
  static constexpr const char* kName = "count_sent_rows";
  Tensor sends;   // [P, P + 1] int32
  Tensor counts;  // [P] int32 in and out
  int rank = 0;
};

void fields(const ChosenRanks& op, Fields& f);
void compute(const ChosenRanks& op);
void run(CudaStream& stream, const ChosenRanks& op);

void fields(const ArrivedRows& op, Fields& f);
void compute(const ArrivedRows& op);
void run(CudaStream& stream, const ArrivedRows& op);

void fields(const UnpermuteGroups& op, Fields& f);
void compute(const UnpermuteGroups& op);
void run(CudaStream& stream, const UnpermuteGroups& op);

void fields(const SumReturnedWeights& op, Fields& f);
void compute(const SumReturnedWeights& op);
void run(CudaStream& stream, const SumReturnedWeights& op);

void fields(const RecordRoom& op, Fields& f);
void compute(const RecordRoom& op);
void run(CudaStream& stream, const RecordRoom& op);

void fields(const CountSentRows& op, Fields& f);
void compute(const CountSentRows& op);
void run(CudaStream& stream, const CountSentRows& op);

}  // namespace megalith
