#include "apps/together.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace megalith {

void together(Communicator& world, const std::function<void()>& work) {
  std::string mine;
  try {
    work();
  } catch (const Error& error) {
    mine = fmt::format("{}:{}", static_cast<int>(error.code()), error.what());
  }
  const std::vector<std::string> all = world.host_all_gather(mine);
  const auto first = std::find_if(all.begin(), all.end(), [](const std::string& e) { return !e.empty(); });
  if (first == all.end()) return;
  const std::size_t colon = first->find(':');
  throw EveryRankFailed(static_cast<ExitCode>(std::stoi(first->substr(0, colon))),
                        static_cast<int>(first - all.begin()), first->substr(colon + 1));
}

}  // namespace megalith
