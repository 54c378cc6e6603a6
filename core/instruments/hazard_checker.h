// Finds unordered conflicting accesses by vector clocks, independent of timing: for each byte range the last write and
// the reads since are kept with the clock of their lane, and an access that is not ordered after a conflicting one is a
// hazard. A lane is a stream, or a captured branch of a graph; lane 0 is the host, whose program order precedes what it
// enqueues. Happens-before: Lamport 1978; vector clocks: Fidge 1988, Mattern 1989.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "core/instruments/access.h"
#include "core/instruments/vector_clock.h"

namespace megalith {

struct Hazard {
  std::string first_op, first_lane;  // the earlier enqueued of the two
  std::string second_op, second_lane;
  const void* begin = nullptr;  // the overlap
  std::size_t bytes = 0;
  std::string kind;  // "write after read", "read after write", "write after write"
};
std::string to_string(const Hazard& hazard);

class HazardChecker {
 public:
  static constexpr int kHost = 0;
  int add_lane(std::string_view name);
  // The lane of branch `index` > 0, captured from stream `name`, of the graphs replayed on the stream of `lane`. They
  // share it, because replays on one stream follow each other; replays on two streams do not.
  int branch(int lane, int index, std::string_view name);

  // An op enqueued on `lane`. `access.name()` must live as long as the checker.
  void op(int lane, const Access& access);
  void record(int lane, std::uint64_t event);
  void wait(int lane, std::uint64_t event);  // an event never recorded orders nothing
  void join(int lane, int other);            // `lane` continues after all that `other` enqueued (synchronize, replay)
  void host(const Access& access) { op(kHost, access); }

  // Each pair of ops and lanes is kept once, the first 100 of them; `count` counts all.
  const std::vector<Hazard>& hazards() const { return hazards_; }
  std::int64_t count() const { return count_; }

 private:
  struct Stamp {
    int lane = -1;  // -1: none
    std::int64_t time = 0;
    std::string_view op;
  };
  // What is known of the bytes [key, end): one write, and the latest read of each lane since.
  struct Shadow {
    std::uintptr_t end = 0;
    Stamp write;
    std::vector<Stamp> reads;
  };

  static bool ordered(const Stamp& before, const VectorClock& clock);
  void report(const Stamp& first, const Stamp& second, std::uintptr_t begin, std::uintptr_t end, const char* kind);
  void split(std::uintptr_t at);
  void access(const Stamp& stamp, const VectorClock& clock, const AccessRange& range);
  void touch(const Stamp& stamp, const VectorClock& clock, bool write, std::uintptr_t begin, Shadow& shadow);
  VectorClock& clock_of(int lane) { return clocks_[static_cast<std::size_t>(lane)]; }

  std::vector<std::string> lanes_{"host"};
  std::vector<VectorClock> clocks_{VectorClock(1, 0)};
  std::unordered_map<std::uint64_t, VectorClock> events_;
  std::map<std::uintptr_t, Shadow> shadows_;
  std::map<std::tuple<int, int, std::string>, int> branches_;
  std::vector<Hazard> hazards_;
  std::set<std::tuple<std::string, std::string, std::string, std::string>> seen_;
  std::int64_t count_ = 0;
};

}  // namespace megalith
