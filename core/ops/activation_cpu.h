// The CPU kernels of GELU at once, for the task of another op that ends in one.
#pragma once

#include "core/ops/activation.h"

namespace megalith {

void compute(const GeluForward& op);
void compute(const GeluBackward& op);

}  // namespace megalith
