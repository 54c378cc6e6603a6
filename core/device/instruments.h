// What watches the streams of one rank. All optional and owned by the caller; they must outlive the streams.
#pragma once

#include <cstdint>
#include <functional>

namespace megalith {

class Access;
class CaptureGuard;
class HazardChecker;
class Stream;
class Timeline;
class Trace;

// Numbers the event waits of a rank in program order. The hazard checker is not told of the one with ordinal
// `suppressed`, to prove that it finds each one that is missing. It is waited for all the same: ops that read tables of
// what other memory they read would reach memory of nobody. A wait between the branches of a graph is left out: its
// capture fails, or the checker finds it at the replay, whose ops a CPU stream runs in the order of the capture.
struct WaitCounter {
  std::int64_t count = 0;
  std::int64_t suppressed = -1;
  bool tells_next() { return count++ != suppressed; }
};

// Is told of each op right before it is enqueued, except while a stream captures.
struct OpObserver {
  bool active = false;
  std::function<void(Stream&, const Access&)> before;
};

struct Instruments {
  HazardChecker* hazards = nullptr;
  Timeline* timeline = nullptr;  // needed by plan streams
  WaitCounter* waits = nullptr;
  CaptureGuard* captures = nullptr;
  OpObserver* observer = nullptr;
  Trace* trace = nullptr;
};

}  // namespace megalith
