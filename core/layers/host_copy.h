// A whole tensor from host memory, for start-up and checkpoints: blocks the host.
#pragma once

#include <span>

#include "core/device/stream.h"
#include "core/tensor/tensor.h"

namespace megalith {

// values.size() == tensor.numel(); converted to the tensor's dtype (fp32 or bf16). The tensor is contiguous.
void upload(Stream& stream, std::span<const float> values, const Tensor& tensor);

}  // namespace megalith
