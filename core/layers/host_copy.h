// Whole tensors between host vectors and device memory, for start-up, checkpoints and tests: both block the host.
#pragma once

#include <span>
#include <vector>

#include "core/device/stream.h"
#include "core/tensor/tensor.h"

namespace megalith {

// values.size() == tensor.numel(); converted to the tensor's dtype (fp32 or bf16). The tensor is contiguous.
void upload(Stream& stream, std::span<const float> values, const Tensor& tensor);
std::vector<float> download(Stream& stream, const Tensor& tensor);

}  // namespace megalith
