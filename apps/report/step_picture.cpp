#include "apps/report/step_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/files/file.h"
#include "core/checkpoint/strict_json.h"

namespace megalith {

namespace {

constexpr std::string_view kCompute = "compute", kRows = "rows of experts", kStep = "step ";

struct TraceSpan {
  std::string name;
  double start = 0, end = 0;  // seconds
};
struct TraceStream {
  std::string name;
  std::vector<TraceSpan> spans;
};
using Ranks = std::map<std::int64_t, std::map<std::int64_t, TraceStream>>;  // by pid and tid

Ranks read_trace(const std::string& path) {
  const nlohmann::json file = parse_strict_json(read_whole_file(path, kMaxJsonBytes), path);
  const auto events = file.is_object() ? file.find("traceEvents") : file.end();
  if (events == file.end() || !events->is_array())
    refuse_content(path, "a file that train --trace wrote", "JSON without an array traceEvents");
  Ranks ranks;
  for (const nlohmann::json& event : *events) {
    try {
      TraceStream& stream = ranks[event.at("pid").get<std::int64_t>()][event.at("tid").get<std::int64_t>()];
      if (event.at("name") == "thread_name") stream.name = event.at("args").at("name").get<std::string>();
      if (event.at("ph") != "X") continue;
      const double start = event.at("ts").get<double>() * 1e-6, duration = event.at("dur").get<double>() * 1e-6;
      stream.spans.push_back({event.at("name").get<std::string>(), start, start + std::max(duration, 0.0)});
    } catch (const nlohmann::json::exception&) {
      refuse_content(path, "events with pid, tid, name and, of spans, ts and dur", "another event");
    }
  }
  return ranks;
}

// The digits after `words`; empty: `text` does not have the words.
std::string number_after(const std::string& text, std::string_view words) {
  const std::size_t at = text.find(words);
  if (at == std::string::npos) return "";
  const std::size_t begin = at + words.size();
  return text.substr(begin, text.find_first_not_of("0123456789", begin) - begin);
}

// The kind of a verb's or an action's range on the compute stream.
BoxKind kind_of_range(std::string_view name) {
  const auto has = [&](std::string_view words) { return name.find(words) != std::string_view::npos; };
  for (const ActionFacts& facts : kActionFacts)
    if (name == facts.name || name.starts_with(fmt::format("{} ", facts.name))) return box_kind_of(facts.kind);
  return has(" forward")           ? BoxKind::kForward
         : has(" backward_data")   ? BoxKind::kBackward
         : has(" backward_weight") ? BoxKind::kBackwardWeight
                                   : BoxKind::kOther;
}

// `verb` is the compute stream's range at that time. Backward, rows travel in the other direction.
BoxKind kind_on_stream(const std::string& stream, const std::string& op, std::string_view verb) {
  if (stream == kRows) {
    const bool is_dispatch = verb.find(" dispatch ") != std::string_view::npos;
    const bool is_forward = verb.find(" forward ") != std::string_view::npos;
    return is_dispatch == is_forward ? BoxKind::kDispatch : BoxKind::kReturn;
  }
  if (stream == "offload") return BoxKind::kCopyOut;
  if (stream == "reload") return BoxKind::kCopyIn;
  if (stream.starts_with("send ") || stream.starts_with("receive ")) return BoxKind::kMessage;
  return op.starts_with("all_gather") ? BoxKind::kGather : BoxKind::kReduce;
}

// Those that no other holds, of the ones that begin within `step`.
std::vector<TraceSpan> outermost(std::vector<TraceSpan> spans, const TraceSpan& step) {
  std::erase_if(spans, [&](const TraceSpan& span) {
    return span.name.starts_with(kStep) || span.start < step.start || span.start > step.end;
  });
  std::ranges::stable_sort(spans, [](const TraceSpan& a, const TraceSpan& b) {
    return std::pair(a.start, -a.end) < std::pair(b.start, -b.end);
  });
  std::vector<TraceSpan> kept;
  for (TraceSpan& span : spans)
    if (kept.empty() || span.start >= kept.back().end || span.end > kept.back().end) kept.push_back(std::move(span));
  for (std::size_t i = 1; i < kept.size(); ++i) kept[i].start = std::max(kept[i].start, kept[i - 1].end);
  return kept;
}

}  // namespace

BoxKind box_kind_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward: return BoxKind::kForward;
    case ActionKind::kBackwardData: return BoxKind::kBackward;
    case ActionKind::kBackwardWeight: return BoxKind::kBackwardWeight;
    case ActionKind::kUnshard:
    case ActionKind::kGatherInstances:
    case ActionKind::kGatherParameters: return BoxKind::kGather;
    case ActionKind::kReduce:
    case ActionKind::kReduceShard:
    case ActionKind::kSumInstances:
    case ActionKind::kSumSharedGradients:
    case ActionKind::kTieGradients:
    case ActionKind::kFinishReduce:
    case ActionKind::kCopyTiedGradients:
    case ActionKind::kReduceSums:
    case ActionKind::kReduceNorm: return BoxKind::kReduce;
    case ActionKind::kSend:
    case ActionKind::kPostReceive: return BoxKind::kMessage;
    case ActionKind::kOffload: return BoxKind::kCopyOut;
    case ActionKind::kReload: return BoxKind::kCopyIn;
    case ActionKind::kOptimizerStep: return BoxKind::kOptimizer;
    default: return name_of(kind).starts_with("wait_") ? BoxKind::kWait : BoxKind::kOther;
  }
}

TimelinePicture picture_of_trace(const std::string& path) {
  TimelinePicture picture;
  for (const auto& [rank, streams] : read_trace(path)) {
    const TraceSpan* step = nullptr;
    std::vector<TraceSpan> ranges;  // of the compute stream
    for (const auto& [thread, stream] : streams) {
      if (stream.name != kCompute) continue;
      for (const TraceSpan& span : stream.spans)
        if (span.name.starts_with(kStep)) step = &span;
      if (step != nullptr) ranges = outermost(stream.spans, *step);
    }
    if (step == nullptr) continue;
    picture.title = fmt::format("A traced training step: {} of {}", step->name, path.substr(path.rfind('/') + 1));
    for (const auto& [thread, stream] : streams) {
      const bool is_compute = stream.name == kCompute;
      if (stream.name == "host") continue;
      picture.lanes.push_back({.group = fmt::format("rank {}", rank), .name = stream.name, .is_tall = is_compute});
      for (const TraceSpan& span : is_compute ? ranges : outermost(stream.spans, *step)) {
        const auto next = std::ranges::upper_bound(ranges, span.start, {}, &TraceSpan::start);
        const std::string range = next == ranges.begin() ? "" : std::prev(next)->name;
        const BoxKind kind = is_compute ? kind_of_range(span.name) : kind_on_stream(stream.name, span.name, range);
        const std::string microbatch = number_after(span.name, " microbatch ");
        picture.boxes.push_back({.lane = picture.lanes.size() - 1,
                                 .start = span.start,
                                 .end = span.end,
                                 .kind = kind,
                                 .label = kind == BoxKind::kWait ? "" : microbatch,
                                 .title = span.name});
      }
    }
  }
  if (picture.boxes.empty()) refuse_content(path, "a step of train --trace", "none");
  return picture;
}

}  // namespace megalith
