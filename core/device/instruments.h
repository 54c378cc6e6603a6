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

// Numbers the event waits of a rank in program order; the wait with ordinal `suppressed` is left out, to prove that the
// hazard checker finds each one that is missing.
struct WaitCounter {
  std::int64_t count = 0;
  std::int64_t suppressed = -1;
  // An eager stream waits all the same and the checker alone is not told: where ops read tables of what other memory
  // they read, a race would reach memory of nobody.
  bool waits_untold = false;
  bool skip_next() { return count++ == suppressed; }
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
