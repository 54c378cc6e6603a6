// Assignment of GPUs to ranks.
#pragma once

#include <string>
#include <vector>

namespace megalith {

// Reason why `rank` cannot use its GPU, if earlier ranks fill the GPU's limit; else empty. `gpus`: GPU name of each
// rank; equal names are one GPU.
std::string gpu_share_fault(const std::vector<std::string>& gpus, int rank, int ranks_per_gpu);

}  // namespace megalith
