// What flows between the segments of a layer of experts, here and where experts are elsewhere.
//   T: tokens, H: hidden size, E: experts, K: choices a token, R = T K routed rows, F: FFN size of an expert
#pragma once

namespace megalith {

// From the router to the experts. Backward: of kTokens the gradients of the rows, [R, H], which the router adds up; of
// kResidual [T, H]; of kRowWeight the partial sums, [R, ceil(F / 64)]; of kShared's input [T, H], where there is one.
enum Routed : int {
  kTokens,     // [T, H], the norm's output, which experts read through kToken
  kResidual,   // [T, H], what the next norm adds
  kRowWeight,  // [R] fp32
  kToken,      // [R] int32: the token of a row; rows are sorted by expert
  kOffsets,    // [E + 1] int32: where each expert's rows begin
  kPosition,   // [T, K] int32: the rows of a token
};

// From the experts to the merge. Backward: of kRows the gradient of the layer's output, [T, H], which experts read
// through kToken; of kMergeResidual [T, H]; of kSharedInput [T, H], absent without shared experts.
enum Merged : int {
  kRows,           // [R, H]
  kMergeResidual,  // [T, H]
  kMergePosition,  // [T, K] int32
  kSharedInput,    // [T, H], as kTokens
};

}  // namespace megalith
