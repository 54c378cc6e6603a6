// Which ranks have which GPU.
#pragma once

#include <string>
#include <vector>

namespace megalith {

// Why `rank` cannot have its GPU, if as many earlier ranks as may share one have it; else empty. `gpus`: by rank, named
// alike where they are the same.
std::string gpu_share_fault(const std::vector<std::string>& gpus, int rank, int ranks_per_gpu);

}  // namespace megalith
