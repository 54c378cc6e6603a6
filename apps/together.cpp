#include "apps/together.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace megalith {

std::optional<RankFailure> failure_of_any(Communicator& world, const std::function<void()>& work) {
  std::string mine;
  try {
    work();
  } catch (const Error& error) {
    mine = fmt::format("{}:{}", static_cast<int>(error.code()), error.what());
  }
  const std::vector<std::string> all = world.host_all_gather(mine);
  const auto first = std::find_if(all.begin(), all.end(), [](const std::string& e) { return !e.empty(); });
  if (first == all.end()) return {};
  const std::size_t colon = first->find(':');
  return RankFailure{.code = static_cast<ExitCode>(std::stoi(first->substr(0, colon))),
                     .rank = static_cast<int>(first - all.begin()),
                     .message = first->substr(colon + 1)};
}

void together(Communicator& world, const std::function<void()>& work) {
  const std::optional<RankFailure> failure = failure_of_any(world, work);
  if (failure) throw EveryRankFailed(failure->code, failure->rank, failure->message);
}

}  // namespace megalith
