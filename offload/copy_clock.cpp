#include "offload/copy_clock.h"

#include <algorithm>

namespace megalith {

void CopyClock::begin(bool on) {
  on_ = on;
  if (on) out_.used = back_.used = 0;
}

CopyClock::Span* CopyClock::start(Way way, Stream& stream) {
  if (!on_) return nullptr;
  Spans& spans = way == Way::kOut ? out_ : back_;
  if (spans.used == spans.all.size()) spans.all.emplace_back();
  Span& span = spans.all[spans.used++];
  span.is_asked = false;
  stream.record(span.begun);
  return &span;
}

void CopyClock::end(Span* span, Stream& stream) {
  if (span != nullptr) stream.record(span->ended);
}

void CopyClock::ask(Span* span, Stream& compute) {
  if (span == nullptr) return;
  compute.record(span->asked);
  span->is_asked = true;
}

OffloadStats CopyClock::read() const {
  OffloadStats stats{.timed = true};
  const auto add = [](const Spans& spans, double& copied, double& waited) {
    for (std::size_t i = 0; i < spans.used; ++i) {
      const Span& span = spans.all[i];
      copied += seconds_between(span.begun, span.ended);
      if (span.is_asked) waited += std::max(0.0, seconds_between(span.asked, span.ended));
    }
  };
  add(out_, stats.copy_out, stats.wait_out);
  add(back_, stats.copy_back, stats.wait_back);
  return stats;
}

}  // namespace megalith
