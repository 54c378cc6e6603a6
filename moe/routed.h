// Tensors that the segments of a layer of experts pass to each other:
//   router | experts | merge                        each rank holds all experts
//   router | dispatch | experts | return | merge    experts are sharded over P ranks (moe/dispatch.h)
// Adjacent segments pass a list that is one of these structs. Tensors for later segments are in the layer's stash
// (LayerSlot, LayerChild).
//   T: tokens of this rank; H: hidden size; E: experts; K: choices of a token; F: FFN size of an expert
//   E_local: experts of this rank; T_arrived: capacity for arriving tokens; R: capacity for rows of local experts
//   (without a dispatch: E, T and T K)
//   M = T P: capacity for rows that leave this rank; S: combine groups of a rank, whose sums return
#pragma once

#include "core/layers/segment.h"

namespace megalith {

// From the router to the dispatch.
struct Routed {
  Tensor x;         // [T, H], output of the norm
  Tensor residual;  // [T, H], input of the next norm's addition
  Tensor weight;    // [T, K] fp32, weights of the choices
  Tensor choice;    // [T, K] int32, experts; -1: dropped
  static constexpr Tensor Routed::*kTensors[] = {&Routed::x, &Routed::residual, &Routed::weight, &Routed::choice};
};

// From the dispatch or the router to the experts.
struct Arrived {
  Tensor x;           // [T_arrived, H], indexed by `token`
  Tensor residual;    // [T, H]
  Tensor row_weight;  // [R] fp32
  Tensor token;       // [R] int32, row of x; sorted by expert
  Tensor offsets;     // [E_local + 1] int32, first row of each expert
  static constexpr Tensor Arrived::*kTensors[] = {&Arrived::x, &Arrived::residual, &Arrived::row_weight,
                                                  &Arrived::token, &Arrived::offsets};
};

// From the experts to the return or the merge, and from the return to the merge. Backward: their gradients. The experts
// receive the gradient of the tokens' sums, [T_arrived, H], indexed by `token`.
struct ExpertRows {
  Tensor rows;      // [R, H]; from the return [T, H], sum of each token
  Tensor residual;  // [T, H]
  static constexpr Tensor ExpertRows::*kTensors[] = {&ExpertRows::rows, &ExpertRows::residual};
};

// Backward, from the experts to the dispatch or the router, and from the dispatch to the router.
struct RowGradients {
  Tensor rows;      // [R, H]; from the dispatch [M, S H]
  Tensor residual;  // [T, H]
  Tensor weight;    // [R, ceil(F / 64)] fp32, partial sums per row; from the dispatch [M, K] fp32
  static constexpr Tensor RowGradients::*kTensors[] = {&RowGradients::rows, &RowGradients::residual,
                                                       &RowGradients::weight};
};

// Positions of rows, in the layer's stash, for the segments that sum rows. The last three exist only with a dispatch.
struct Dispatched {
  Tensor position;       // [T_arrived, K] int32, rows of a token; its bound is the number of arrived tokens
  Tensor choice;         // [T_arrived, K] int32
  Tensor sends;          // [P, P + 1] int32, row r: offsets of rank r's rows by destination
  Tensor send_token;     // [M] int32, token of each row that leaves
  Tensor send_position;  // [T, P] int32, row of a token for a rank; -1: none
  static constexpr Tensor Dispatched::*kTensors[] = {&Dispatched::position, &Dispatched::choice, &Dispatched::sends,
                                                     &Dispatched::send_token, &Dispatched::send_position};
};

// The layer's stash. All except kDispatched are handed, so they live from one segment's verb to a later segment's.
enum LayerSlot {
  kSharedInput,     // [T, H], input of a shared expert
  kSharedOutput,    // [T, H], its output, if it ran while rows were in flight
  kSharedGradient,  // [T, H], gradient of its input
};
enum LayerChild {
  kDispatched,
  kOpened,          // SharedExpert::Opened, from the dispatch to the return
  kOpenedGradient,  // SharedExpert::OpenedGradient, from the return to the dispatch
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
  for (const auto tensor : Named::kTensors) named.*tensor = stash.at(slot++, "output of an earlier segment");
  return named;
}
template <class Named>
void hand(Stash& stash, const Named& named) {
  int slot = 0;
  for (const auto tensor : Named::kTensors) stash.hand(slot++, named.*tensor);
}

// Dispatched of this layer, as its dispatch or router stored it.
inline Dispatched dispatched(Stash& stash) { return from_stash<Dispatched>(stash.layer().child(kDispatched)); }
inline void keep_dispatched(Stash& stash, const Dispatched& dispatched) {
  Stash& kept = stash.layer().child(kDispatched);
  int slot = 0;
  for (const auto tensor : Dispatched::kTensors) kept[slot++] = dispatched.*tensor;
}

}  // namespace megalith
