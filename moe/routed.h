// What the segments of a layer of experts hand each other:
//   router | experts | merge                        each rank has all experts
//   router | dispatch | experts | return | merge    P ranks share them (moe/dispatch.h)
// Neighbours hand each other a list, which is one of these structs by name. What a later segment reads lies in the
// layer's stash (LayerSlot, LayerChild), so that no segment hands on what it does not read.
//   T: tokens of this rank, H: hidden size, E: experts, K: choices of a token, F: FFN size of an expert
//   E_local: experts of this rank; T_arrived: capacity for tokens that arrive at them; R: capacity for their rows
//   (without a dispatch these three are E, T and T K)
//   M: capacity for rows that leave this rank, T P; S: groups of experts of a rank, whose sums return
#pragma once

#include "core/layers/segment.h"

namespace megalith {

// The router to the dispatch.
struct Routed {
  Tensor x;         // [T, H], the norm's output
  Tensor residual;  // [T, H], what the next norm adds
  Tensor weight;    // [T, K] fp32, of the choices
  Tensor choice;    // [T, K] int32, experts; -1: dropped
  static constexpr Tensor Routed::*kTensors[] = {&Routed::x, &Routed::residual, &Routed::weight, &Routed::choice};
};

// The dispatch, or the router, to the experts.
struct Arrived {
  Tensor x;           // [T_arrived, H], read through `token`
  Tensor residual;    // [T, H]
  Tensor row_weight;  // [R] fp32
  Tensor token;       // [R] int32, the row of x; sorted by expert
  Tensor offsets;     // [E_local + 1] int32, where each expert's rows begin
  static constexpr Tensor Arrived::*kTensors[] = {&Arrived::x, &Arrived::residual, &Arrived::row_weight,
                                                  &Arrived::token, &Arrived::offsets};
};

// The experts to the return or the merge, and the return to the merge. Backward: their gradients. For the experts that
// of `rows` is the gradient of the tokens' sums, [T_arrived, H], which they read through `token`.
struct ExpertRows {
  Tensor rows;      // [R, H]; from the return [T, H], each token's sum
  Tensor residual;  // [T, H]
  static constexpr Tensor ExpertRows::*kTensors[] = {&ExpertRows::rows, &ExpertRows::residual};
};

// Backward: the experts to the dispatch or the router, and the dispatch to the router.
struct RowGradients {
  Tensor rows;      // [R, H]; from the dispatch [M, S H]
  Tensor residual;  // [T, H]
  Tensor weight;    // [R, ceil(F / 64)] fp32, partial sums of a row; from the dispatch [M, K] fp32
  static constexpr Tensor RowGradients::*kTensors[] = {&RowGradients::rows, &RowGradients::residual,
                                                       &RowGradients::weight};
};

// In the layer's stash: where rows are, for those who add them up. The last three only with a dispatch.
struct Dispatched {
  Tensor position;       // [T_arrived, K] int32, the rows of a token; its bound: how many tokens arrived
  Tensor choice;         // [T_arrived, K] int32
  Tensor sends;          // [P, P + 1] int32, row r: where in rank r's rows those for each rank begin, and their end
  Tensor send_token;     // [M] int32, the token of a row that leaves
  Tensor send_position;  // [T, P] int32, the row of a token that leaves for a rank; -1: none
  static constexpr Tensor Dispatched::*kTensors[] = {&Dispatched::position, &Dispatched::choice, &Dispatched::sends,
                                                     &Dispatched::send_token, &Dispatched::send_position};
};

// The layer's stash. All but kDispatched are handed: they live from one segment's verb to a later one's.
enum LayerSlot {
  kSharedInput,     // [T, H], of a shared expert
  kSharedOutput,    // [T, H], where it ran while rows travelled
  kSharedGradient,  // [T, H], of its input
};
enum LayerChild {
  kDispatched,
  kOpened,          // SharedExpert::Opened, the dispatch to the return
  kOpenedGradient,  // SharedExpert::OpenedGradient, back
};

template <class Named>
TensorList list_of(const Named& named) {
  TensorList list;
  for (const auto tensor : Named::kTensors) list.push_back(named.*tensor);
  return list;
}
template <class Named>
Named from_list(const TensorList& list) {
  Named named;
  int i = 0;
  for (const auto tensor : Named::kTensors) named.*tensor = list[i++];
  return named;
}
template <class Named>
Named from_stash(Stash& stash) {
  Named named;
  int slot = 0;
  for (const auto tensor : Named::kTensors) named.*tensor = stash.at(slot++, "what a segment before has left");
  return named;
}
template <class Named>
void hand(Stash& stash, const Named& named) {
  int slot = 0;
  for (const auto tensor : Named::kTensors) stash.hand(slot++, named.*tensor);
}

// Of this layer, as its dispatch or router has left them.
inline Dispatched dispatched(Stash& stash) { return from_stash<Dispatched>(stash.layer().child(kDispatched)); }
inline void keep_dispatched(Stash& stash, const Dispatched& dispatched) {
  Stash& kept = stash.layer().child(kDispatched);
  int slot = 0;
  for (const auto tensor : Dispatched::kTensors) kept[slot++] = dispatched.*tensor;
}

}  // namespace megalith
