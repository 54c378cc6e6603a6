#include "apps/cost/action_spans.h"

#include <algorithm>
#include <utility>

namespace megalith {

void SpanLog::open(const std::vector<std::size_t>& entries, std::size_t entry, double clock) {
  for (; opened_ < entries.size() && entries[opened_] <= entry; ++opened_) {
    last_[0] = spans_.size();
    spans_.push_back({.action = opened_, .start = clock, .end = clock});
  }
}

void SpanLog::add(ActionSpan span) {
  std::size_t& last = last_[span.lane];
  if (last == kNone || spans_[last].action != span.action) {
    if (span.end <= span.start) return;
    if (last != kNone) span.start = std::max(span.start, spans_[last].end);
    last = spans_.size();
    spans_.push_back({.action = span.action, .lane = span.lane, .start = span.start, .end = span.start});
  }
  spans_[last].end = std::max(spans_[last].start, span.end);
  spans_[last].waited += span.waited;
  if (spans_[last].call == nullptr) spans_[last].call = span.call;
}

void SpanLog::shorten(std::size_t lane, double end) {
  if (last_[lane] == kNone) return;
  ActionSpan& span = spans_[last_[lane]];
  span.end = std::clamp(end, span.start, span.end);
}

std::vector<ActionSpan> SpanLog::spans() const {
  std::vector<bool> has_other(opened_);
  for (const ActionSpan& span : spans_)
    if (span.lane != 0) has_other[span.action] = true;
  std::vector<ActionSpan> spans = spans_;
  std::erase_if(spans, [&](const ActionSpan& span) {
    return span.end == span.start && span.lane == 0 && has_other[span.action];
  });
  return spans;
}

bool Meetings::has(const PlannedCall& call) const {
  return call.ranks->front() / ranks_of_stage_ != call.ranks->back() / ranks_of_stage_;
}

void Meetings::set(const std::string& group, int stage, std::size_t call, double time) {
  std::vector<double>& times = times_[group][stage];
  times.resize(std::max(times.size(), call + 1));
  changed_ |= std::exchange(times[call], time) != time;
}

double Meetings::latest(const std::string& group, std::size_t call) const {
  double latest = 0;
  if (const auto found = times_.find(group); found != times_.end()) {
    for (const auto& [stage, times] : found->second) latest = std::max(latest, call < times.size() ? times[call] : 0);
  }
  return latest;
}

bool Meetings::take_changed() { return std::exchange(changed_, false); }

}  // namespace megalith
