// The flags of train in one call, as its main reads them in two.
#pragma once

#include <string>
#include <vector>

#include "apps/checkpoint/checkpoint_flags.h"
#include "parallel/comm/on_all_ranks.h"

namespace megalith::test {

// Collective.
inline Parsed parse_run(const std::vector<std::string>& arguments, Communicator& world, FoundCheckpoint& found) {
  FlagParser parser(App::kTrain);
  Parsed read;
  on_all_ranks(world, [&] { read = parser.read(arguments, world.rank()); });
  return read.print.empty() ? finish_flags(parser, read, world, found) : read;
}

}  // namespace megalith::test
