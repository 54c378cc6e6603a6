// Report of a hanging collective: waiting and missing ranks, from the ranks' own states.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "parallel/watch/flight_recorder.h"

namespace megalith {

// State of a rank, as it answers.
struct RankState {
  struct Group {
    std::string name;
    std::uint64_t sequence = 0;          // last collective on this group
    std::uint64_t running_sequence = 0;  // 0: none
    std::string running;                 // "all_reduce #12 (...)"
    double running_ms = 0;
  };
  bool late = false;  // it has waited about as long as the timeout
  std::vector<Group> groups;
};
std::string to_text(const RankState& state);
RankState rank_state_from(const std::string& text);

// Line of the report. `late`: call of group `group` in which this rank (`me`, in the world) waits. `states`: those of
// the ranks that answered, including this one.
struct HangReport {
  int me = 0;
  std::string group;
  std::vector<int> members;  // the group's ranks in the world
  CollectiveCall late;
  std::chrono::milliseconds timeout{};
  std::map<int, RankState> states;
  int world = 0;                                  // number of ranks; silent ranks outside of the group are reported too
  std::function<std::string(int)> place_of = {};  // as in WatchOptions

  std::string place(int rank) const { return place_of ? " (" + place_of(rank) + ")" : ""; }
};
std::string to_string(const HangReport& report);

}  // namespace megalith
