#include "parallel/checkpoint/attempt.h"

#include <fmt/format.h>

#include <vector>

namespace megalith {

void add_problem(std::string& problems, const std::string& problem) {
  if (!problem.empty()) problems += (problems.empty() ? "" : "; ") + problem;
}

std::string agree(const RankSync& sync, const std::string& error) {
  if (!sync.any(!error.empty())) return {};
  constexpr int kShown = 4;
  const std::vector<std::string> errors = sync.gather(error);
  std::string text;
  int failed = 0;
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    if (errors[rank].empty()) continue;
    if (++failed > kShown) continue;
    if (failed > 1) text += "; ";
    text += sync.world == 1 ? errors[rank] : fmt::format("rank {}: {}", rank, errors[rank]);
  }
  if (failed > kShown) text += fmt::format("; and {} more ranks", failed - kShown);
  return sync.broadcast(text);
}

}  // namespace megalith
