// Checker of unordered conflicting accesses by vector clocks, independent of timing. Each byte range keeps its last
// write and the reads since, with the clocks of their lanes. An access not ordered after a conflicting one is a hazard.
// Each lane is a stream or a captured branch of a graph. Lane 0 is the host, whose program order precedes its enqueued
// work. Happens-before: Lamport 1978; vector clocks: Fidge 1988, Mattern 1989.
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
  std::string first_op, first_lane;  // the op that was enqueued first
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
  // Returns the lane of branch `index` > 0, captured from stream `name`, of graphs replayed on the stream of `lane`.
  // Replays on one stream share the lane, since they are ordered; replays on two streams are not.
  int branch(int lane, int index, std::string_view name);

  // Records an op enqueued on `lane`. `access.name()` must live as long as the checker.
  void op(int lane, const Access& access);
  void record(int lane, std::uint64_t event);
  void wait(int lane, std::uint64_t event);  // an unrecorded event orders nothing
  void join(int lane, int other);            // orders `lane` after all work on `other` (synchronize, replay)
  void host(const Access& access) { op(kHost, access); }

  // Returns the first 100 hazards, one per pair of ops and lanes; `count` counts all.
  const std::vector<Hazard>& hazards() const { return hazards_; }
  std::int64_t count() const { return count_; }

 private:
  struct Stamp {
    int lane = -1;  // -1: none
    std::int64_t time = 0;
    std::string_view op;
  };
  // State of the bytes [key, end): one write, and the latest read of each lane since.
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
