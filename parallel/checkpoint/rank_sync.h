// What saving and loading need of the other ranks, so that they work with any communicator. Every rank calls the same
// functions in the same order. They may throw only when a peer is lost.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace megalith {

struct RankSync {
  int rank = 0;
  int world = 1;
  std::function<bool(bool)> any;                                // true on every rank when it is true on one
  std::function<std::string(std::string)> broadcast;            // the string of rank 0, on every rank
  std::function<std::vector<std::string>(std::string)> gather;  // rank 0: one string per rank; unused elsewhere
};

// The form for one rank: nobody to wait for.
RankSync one_rank();

}  // namespace megalith
