#include "parallel/comm/sequence_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <sstream>
#include <vector>

namespace megalith {

std::string difference_of_sequences(Communicator& group) {
  if (group.size() == 1) return {};
  const FlightRecorder::Sequence mine = group.recorder().sequence_so_far();
  const auto hashes = group.host_gather(std::array{mine.length, mine.hash});
  const auto other = std::find_if(hashes.begin(), hashes.end(), [&](const auto& h) { return h != hashes[0]; });
  if (other == hashes.end()) return {};
  std::string text;
  for (const std::string& call : mine.calls) text += call + '\n';
  const std::vector<std::string> all = group.host_all_gather(text);
  const auto rank = static_cast<std::size_t>(other - hashes.begin());
  std::istringstream first(all[0]);
  std::istringstream second(all[rank]);
  for (std::int64_t number = 1;; ++number) {
    std::string a, b;
    const bool has_a = static_cast<bool>(std::getline(first, a));
    const bool has_b = static_cast<bool>(std::getline(second, b));
    if (has_a && has_b && a == b) continue;
    return fmt::format(
        "collective #{} on group {}: expected the same call on all ranks, got {} on rank 0 and {} on rank {}; all "
        "ranks must issue the same sequence of kinds, dtypes and counts",
        number, group.name(), has_a ? a : "none", has_b ? b : "none", rank);
  }
}

}  // namespace megalith
