#include "parallel/watch/hang_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

namespace megalith {

namespace {

std::string ranks_text(const HangReport& report, const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (const int rank : ranks)
    text += fmt::format("{} {}{}", rank == ranks.front() ? "" : ",", rank, report.place(rank));
  return text;
}

// Activity of rank `rank`, which is not in the late call.
std::string absence_of(const HangReport& report, const RankState& state) {
  std::uint64_t last = 0;
  const RankState::Group* elsewhere = nullptr;
  for (const RankState::Group& group : state.groups) {
    if (group.name == report.group) last = group.sequence;
    if (group.running_sequence != 0 && (elsewhere == nullptr || group.name == report.group)) elsewhere = &group;
  }
  const std::string before = fmt::format("its last call on the group was #{}", last);
  if (elsewhere == nullptr) return "in no collective, so it computes or is blocked elsewhere; " + before;
  return fmt::format("in {} on group {} for {:.1f} s; {}", elsewhere->running, elsewhere->name,
                     elsewhere->running_ms * 1e-3, before);
}

// Counts of an all-to-all differ by rank.
bool is_in(const HangReport& report, const RankState& state) {
  const bool own_counts = report.late.kind == "all_to_all";
  const std::string call = own_counts ? fmt::format("all_to_all #{} ", report.late.sequence) : to_string(report.late);
  return std::any_of(state.groups.begin(), state.groups.end(), [&](const RankState::Group& group) {
    return group.name == report.group && (own_counts ? group.running.starts_with(call) : group.running == call);
  });
}

// Ranks of the world that the call waits for.
std::vector<int> partners_of(const HangReport& report) {
  if (!report.late.point_to_point) return report.members;
  const auto peer = static_cast<std::size_t>(report.late.argument);
  return peer < report.members.size() ? std::vector<int>{report.me, report.members[peer]} : report.members;
}

}  // namespace

std::string to_text(const RankState& state) {
  std::string text = state.late ? "late\n" : "\n";
  for (const RankState::Group& group : state.groups) {
    text += fmt::format("{}\t{}\t{}\t{}\t{:.3f}\n", group.name, group.sequence, group.running_sequence, group.running,
                        group.running_ms);
  }
  return text;
}

RankState rank_state_from(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  RankState state;
  std::getline(lines, line);
  state.late = line == "late";
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    std::string sequence, running, ms;
    RankState::Group group;
    std::getline(fields, group.name, '\t');
    std::getline(fields, sequence, '\t');
    std::getline(fields, running, '\t');
    std::getline(fields, group.running, '\t');
    std::getline(fields, ms, '\t');
    group.sequence = std::strtoull(sequence.c_str(), nullptr, 10);
    group.running_sequence = std::strtoull(running.c_str(), nullptr, 10);
    group.running_ms = std::strtod(ms.c_str(), nullptr);
    state.groups.push_back(std::move(group));
  }
  return state;
}

std::string to_string(const HangReport& report) {
  std::vector<int> waiting;
  std::vector<int> silent;
  std::string absent;
  const std::vector<int> partners = partners_of(report);
  for (const int rank : partners) {
    const auto state = report.states.find(rank);
    if (state == report.states.end()) {
      silent.push_back(rank);
    } else if (is_in(report, state->second)) {
      waiting.push_back(rank);
    } else {
      absent += fmt::format("; rank {}{} is {}", rank, report.place(rank), absence_of(report, state->second));
    }
  }
  for (int rank = 0; rank < report.world; ++rank) {  // silent ranks outside of the group may block its ranks
    if (!report.states.contains(rank) && std::ranges::find(partners, rank) == partners.end()) silent.push_back(rank);
  }
  std::string text = fmt::format("{} on group {}: expected its ranks {} within {:.1f} s (--comm-timeout), got {}",
                                 to_string(report.late), report.group, fmt::join(partners, ", "),
                                 static_cast<double>(report.timeout.count()) * 1e-3,
                                 waiting.empty()                     ? "none"
                                 : waiting.size() == partners.size() ? "all, whose messages are lost or slow"
                                                                     : "only " + ranks_text(report, waiting));
  text += absent;
  if (!silent.empty())
    text += fmt::format("; {} gave no answer, so the process is stopped, lost or starved", ranks_text(report, silent));
  return text;
}

}  // namespace megalith
