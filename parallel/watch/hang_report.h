// Who waits for whom when a collective hangs, from what the ranks say of themselves.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "parallel/watch/flight_recorder.h"

namespace megalith {

// Where a rank is, as it answers.
struct RankState {
  struct Group {
    std::string name;
    std::uint64_t sequence = 0;          // of its last collective there
    std::uint64_t running_sequence = 0;  // 0: it is in none
    std::string running;                 // "all_reduce #12 (...)"
    double running_ms = 0;
  };
  bool late = false;  // it waits (almost) as long as the timeout itself
  std::vector<Group> groups;
};
std::string to_text(const RankState& state);
RankState rank_state_from(const std::string& text);

// The report's line: `late` is the call of group `group` that this rank (`me`, of the world) waits in; `states` those
// of the ranks that answered, this one's included.
struct HangReport {
  int me = 0;
  std::string group;
  std::vector<int> members;  // of the group, as the world counts
  CollectiveCall late;
  std::chrono::milliseconds timeout{};
  std::map<int, RankState> states;
  int world = 0;                                  // its ranks: of those outside the group who is silent is told too
  std::function<std::string(int)> place_of = {};  // as WatchOptions has it

  std::string place(int rank) const { return place_of ? " (" + place_of(rank) + ")" : ""; }
};
std::string to_string(const HangReport& report);

}  // namespace megalith
