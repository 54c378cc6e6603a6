#include "parallel/cost/shared_link.h"

#include <algorithm>

namespace megalith {

double SharedLink::end_of(double begin, double seconds, std::size_t lane, double slowed) {
  double at = begin;
  for (const Span& span : spans_) {
    if (span.end <= at) continue;
    if (at + seconds <= span.begin) break;
    if (span.begin > at) {
      seconds -= span.begin - at;
      at = span.begin;
    }
    const bool ends_first = seconds < left_ * (span.end - at);
    if (ends_first) {
      seconds /= left_;
      break;
    }
    seconds -= left_ * (span.end - at);
    at = span.end;
  }
  const Span mine{.begin = begin, .end = at + seconds, .lane = lane, .slowed = slowed};
  spans_.insert(std::ranges::upper_bound(spans_, begin, {}, &Span::begin), mine);
  return mine.end;
}

double SharedLink::catch_up(std::size_t lane, double from, double to) {
  double gained = 0;
  for (Span& span : spans_) {
    if (span.lane != lane || span.end <= from) continue;
    const double meanwhile = std::max(0.0, std::min(span.end, to) - std::max(span.begin, from));
    if (span.begin > from) span.begin -= gained;
    gained += meanwhile * span.slowed;
    span.end -= gained;
  }
  if (gained > 0) std::ranges::stable_sort(spans_, {}, &Span::begin);
  return gained;
}

}  // namespace megalith
