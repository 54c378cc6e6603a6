// Unsharded tensors between host vectors and device memory: upload and download, which block the host.
#pragma once

#include <vector>

#include "core/layers/parameter.h"

namespace megalith {

// The tensor is contiguous, fp32 or bf16.
std::vector<float> download(Stream& stream, const Tensor& tensor);

}  // namespace megalith
