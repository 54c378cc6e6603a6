// When the copies of a step ran, and how long computing stood still for them: by events on their streams and on the
// compute stream, which the host reads when the step is over. A step that is not timed records none of them.
#pragma once

#include <cstddef>
#include <deque>

#include "core/device/stream.h"
#include "offload/stats.h"

namespace megalith {

class CopyClock {
 public:
  // Of a copy: its begin and end on its own stream, and when the compute stream came to the wait for it.
  struct Span {
    Event begun{"copy begins", true}, ended{"copy ends", true}, asked{"wait for a copy", true};
    bool is_asked = false;
  };
  enum class Way : bool { kOut, kBack };

  // Forgets the spans of the last timed step. From here on copies are timed, or none are.
  void begin(bool on);
  // Right before the copy is enqueued; null where it is not timed, which the next two take.
  Span* start(Way way, Stream& stream);
  static void end(Span* span, Stream& stream);
  static void ask(Span* span, Stream& compute);
  // The times of the last timed step, which is over.
  OffloadStats read() const;

 private:
  struct Spans {
    std::deque<Span> all;  // events are made once
    std::size_t used = 0;
  };
  Spans out_, back_;
  bool on_ = false;
};

}  // namespace megalith
