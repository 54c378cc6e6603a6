// Measured times of a step's copies, and of the compute stream's waits for them. Events on the streams record the
// times; the host reads the events after the step. A step that is not timed records no events.
#pragma once

#include <cstddef>
#include <deque>

#include "core/device/stream.h"
#include "offload/stats.h"

namespace megalith {

class CopyClock {
 public:
  // Events of a copy: begin and end on the copy stream, and the wait on the compute stream.
  struct Span {
    Event begun{"copy begins", true}, ended{"copy ends", true}, asked{"wait for a copy", true};
    bool is_asked = false;
  };
  enum class Way : bool { kOut, kBack };

  // Discards the spans of the last timed step, and enables or disables timing.
  void begin(bool on);
  // Starts a span right before the copy is enqueued. Returns null without timing; end() and ask() accept null.
  Span* start(Way way, Stream& stream);
  static void end(Span* span, Stream& stream);
  static void ask(Span* span, Stream& compute);
  // Times of the last timed step, which must be complete.
  OffloadStats read() const;

 private:
  struct Spans {
    std::deque<Span> all;  // events are reused
    std::size_t used = 0;
  };
  Spans out_, back_;
  bool on_ = false;
};

}  // namespace megalith
