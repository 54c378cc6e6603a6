// Rotary position embedding, rotate-half (NeoX) pairing. Su et al. 2021, arXiv:2104.09864, section 3.4.2.
#pragma once

#include <cstdint>

#include "core/ops/attention/rope_frequency.h"
#include "core/ops/op_declaration.h"
#include "core/ops/sequence_part.h"

namespace megalith {

inline constexpr std::int64_t kMaxRotaryDim = 1024;

// With R = rotary_dim, i < R / 2, position p of row s (+ *start), angle phi = p f[i] and attention factor m, which
// rope_frequencies gives (unscaled: f[i] = theta^(-2 i / R), m = 1):
//   y[i]         = m (x[i] cos(phi) - x[i + R/2] sin(phi))
//   y[i + R/2]   = m (x[i + R/2] cos(phi) + x[i] sin(phi))
//   y[j]         = x[j] for j >= R
// `backward` rotates by -phi, which is the gradient: x is then dy, y is dx. B samples, S tokens per sample, N heads, D
// head dim. Leading dims may be strided. m cos and m sin are fp64 values (error below 1e-14 plus 1e-16 times the angle)
// rounded once to fp32. They depend on the position alone: prefill, decoding, any cut of the sequence and any pack of
// documents give equal bits.
struct Rope {
  MEGALITH_OP(Rope, "rope");
  Tensor x;                     // [B, S, N, D] bf16 | fp32
  Tensor y;                     // [B, S, N, D] out, dtype of x; x itself, or disjoint from it
  float theta = 10000.0f;       // base of the frequencies
  std::int64_t rotary_dim = 0;  // R: even, 2 to D, at most kMaxRotaryDim; no default
  RopeScaling scaling;          // scaling of the frequencies, and of cos and sin
  bool backward = false;
  SequencePart part;                    // positions of the S rows
  const std::int32_t* start = nullptr;  // device, optional: added to the positions; not negative
  Tensor positions = {};                // [B * S] int32, device, optional: positions of the rows, instead of part and
                                        // start; -1 (padding) rotates by 0
};

// Checks these fields of any op that rotates heads of `head_dim`.
void check_rotation(std::int64_t rotary_dim, float theta, const RopeScaling& scaling, std::int64_t head_dim, Fields& f);

}  // namespace megalith
