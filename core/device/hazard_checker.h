// Finds unordered conflicting accesses by vector clocks, independent of timing: for each byte range the last write and
// the reads since are kept with the clock of their lane, and an access that is not ordered after a conflicting one is a
// hazard. A lane is a stream, or a captured branch of a graph; lane 0 is the host, whose program order precedes what it
// enqueues. Happens-before: Lamport 1978; vector clocks: Fidge 1988, Mattern 1989.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/device/access.h"

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
  HazardChecker();
  ~HazardChecker();
  HazardChecker(const HazardChecker&) = delete;
  HazardChecker& operator=(const HazardChecker&) = delete;

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
  const std::vector<Hazard>& hazards() const;
  std::int64_t count() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace megalith
