// The times of a step's actions on the streams of a rank, and what several stages exchange to find them.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "parallel/comm/plan_communicator.h"

namespace megalith {

// The time that an action takes of one stream, in seconds since the recording's begin.
struct ActionSpan {
  std::size_t action = 0;
  std::size_t lane = 0;  // of the recording's timeline
  double start = 0;
  double end = 0;
  double waited = 0;                  // of the span, for other streams and stages
  const PlannedCall* call = nullptr;  // the span's first call; null: it has none
};

// The spans of one rank, ascending within a lane and without overlap.
class SpanLog {
 public:
  explicit SpanLog(std::size_t lanes) : last_(lanes, kNone) {}

  // Begins the compute stream's spans of the actions whose entries begin at or ahead of `entry`.
  void open(const std::vector<std::size_t>& entries, std::size_t entry, double clock);
  // Extends the action's span on that lane, or adds one.
  void add(ActionSpan span);
  // The lane's last span ends at `end` instead of later.
  void shorten(std::size_t lane, double end);
  // Without empty spans of actions that have another.
  std::vector<ActionSpan> spans() const;

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  std::vector<ActionSpan> spans_;
  std::vector<std::size_t> last_;  // span of each lane
  std::size_t opened_ = 0;         // actions
};

// Times that several stages depend on, by group, stage and call: a message has arrived, a rank joins a collective.
class Meetings {
 public:
  explicit Meetings(int ranks_of_stage) : ranks_of_stage_(ranks_of_stage) {}

  bool has(const PlannedCall& call) const;  // its ranks are of several stages
  void set(const std::string& group, int stage, std::size_t call, double time);
  double latest(const std::string& group, std::size_t call) const;  // of all stages; 0: none has come to it
  // Whether a time has changed since the last query.
  bool take_changed();

 private:
  int ranks_of_stage_;
  bool changed_ = false;
  std::map<std::string, std::map<int, std::vector<double>>> times_;
};

}  // namespace megalith
