#include "parallel/comm/gpu_share.h"

#include <fmt/format.h>

namespace megalith {

std::string gpu_share_fault(const std::vector<std::string>& gpus, int rank, int ranks_per_gpu) {
  const std::string& mine = gpus[static_cast<std::size_t>(rank)];
  std::vector<int> earlier;
  for (int other = 0; other < rank; ++other)
    if (gpus[static_cast<std::size_t>(other)] == mine) earlier.push_back(other);
  if (std::ssize(earlier) < ranks_per_gpu) return "";
  constexpr const char* kRemedy = "on each node, or check CUDA_VISIBLE_DEVICES";
  if (ranks_per_gpu == 1) {
    return fmt::format(
        "--device cuda: a GPU for each rank: expected a GPU that rank {} does not use, got GPU {}; start at most one "
        "process a GPU {}",
        earlier[0], mine, kRemedy);
  }
  return fmt::format(
      "--device cuda: a GPU for {0} ranks (MEGALITH_RANKS_PER_GPU): expected a GPU that fewer than {0} other ranks "
      "use, got GPU {1} of ranks {2}; start at most {0} processes a GPU {3}",
      ranks_per_gpu, mine, fmt::join(earlier, ", "), kRemedy);
}

}  // namespace megalith
