// What flows between the segments of a layer of experts:
//   router | experts | merge                        each rank has all experts
//   router | dispatch | experts | return | merge    P ranks share them out (moe/dispatch.h)
//   T: tokens, H: hidden size, E: experts, K: choices a token, R: routed rows, T K where each rank has all experts,
//   F: FFN size of an expert. Shared out, E is this rank's experts, T in what experts read is C, the tokens that
//   arrived, and R and C are what there is room for; M = T P rows at most leave a rank, of S groups' sums each when
//   they return.
#pragma once

namespace megalith {

// From the router to the dispatch. Backward: of kTokens what came back, [M, S H], absent nowhere; of kResidual [T, H];
// of kRowWeight what came back, [M, K] fp32; in kSharedGradient that of kTokens from a shared expert, [T, H], or none;
// in kReturnPosition [T, P] int32, where each token's rows are in what came back.
enum Chosen : int {
  // kTokens, kResidual, and in place of kRowWeight the weights of the choices, [T, K] fp32
  kSentChoice = 3,  // [T, K] int32; -1: dropped
};
enum ChosenGradient : int { kSharedGradient = 3, kReturnPosition = 4 };

// To the experts. Backward: of kTokens the gradients of the rows, [R, H], which the router adds up; of kResidual
// [T, H]; of kRowWeight the partial sums, [R, ceil(F / 64)]; then what the merge hands on for a shared expert.
enum Routed : int {
  kTokens,     // [T, H], the norm's output, which experts read through kToken
  kResidual,   // [T, H], what the next norm adds
  kRowWeight,  // [R] fp32
  kToken,      // [R] int32: the token of a row; rows are sorted by expert
  kOffsets,    // [E + 1] int32: where each expert's rows begin
  kPosition,   // [T, K] int32: the rows of a token
  // What the return, or a merge that adds up in groups, needs; experts hand it on.
  kChoice,        // [T, K] int32: the experts of a token
  kSends,         // [P, P + 1] int32: where each rank's rows for each rank begin
  kSendToken,     // [M] int32: the token of a row that leaves
  kSendPosition,  // [T, P] int32: the row of a token that leaves for a rank; -1: none
  kShared,        // a shared expert's input [T, H], or the three parts of what SharedExpert::open made
};

// From the experts, then from the return, to the merge. Backward: of kRows the gradient of the layer's output, [T, H],
// which experts read through kToken; of kMergeResidual [T, H]; from kSharedInput on that of a shared expert's input,
// [T, H], or the two parts of SharedExpert::OpenedGradient.
enum Merged : int {
  kRows,           // [R, H]; from the return the sums, [T, H]
  kMergeResidual,  // [T, H]
  kMergePosition,  // [T, K] int32; from the return: absent
  kSharedInput,    // [T, H], as kTokens; from the return perhaps the shared expert's output
  kMergeChoice,    // as kChoice; the others follow in their order
};
// Where experts hand on what they got at `routed`.
constexpr int handed_on(Routed routed) { return kMergeChoice + (routed - kChoice); }

}  // namespace megalith
