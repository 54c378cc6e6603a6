// Initial weights: normal numbers that are a function of the parameter's name and the element's place in it
// (core/base/rng.h), so they depend neither on the layout of ranks nor on the device.
#pragma once

#include "core/base/rng.h"
#include "core/ops/op.h"

namespace megalith {

// x[i] = number offset + i of `numbers`, rounded to fp32, then to x's dtype.
struct FillNormal {
  static constexpr const char* kName = "fill_normal";
  Tensor x;  // out, any shape, contiguous, fp32 or bf16
  NormalNumbers numbers;
};

void check(const FillNormal& op);
void access(const FillNormal& op, Access& a);
void run(CpuStream& stream, const FillNormal& op);
void run(CudaStream& stream, const FillNormal& op);

}  // namespace megalith
