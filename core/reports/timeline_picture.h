// A picture of streams over time, as SVG: one lane per stream, boxes of what ran when, frames around boxes, a legend
// and an axis. The same picture gives the same bytes on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace megalith {

enum class BoxKind : std::uint8_t {
  kForward,
  kBackward,
  kBackwardWeight,
  kGather,
  kReduce,
  kDispatch,
  kReturn,
  kMessage,
  kCopyOut,
  kCopyIn,
  kOptimizer,
  kWait,
  kOther,
};

struct TimelineLane {
  std::string group;  // the rank or stage; consecutive lanes of one group stand together
  std::string name;
  bool is_tall = false;
};

struct TimelineBox {
  std::size_t lane = 0;
  double start = 0;  // seconds
  double end = 0;
  BoxKind kind = BoxKind::kOther;
  std::string label;       // drawn once for consecutive boxes of a lane that share the label; empty: none
  std::string title;       // tooltip
  int frame = -1;          // one frame surrounds consecutive boxes of a lane with this number; -1: none
  bool is_shaded = false;  // darker: an odd chunk of the pipeline
};

struct TimelinePicture {
  std::string title;
  std::vector<TimelineLane> lanes;
  std::vector<TimelineBox> boxes;  // ascending within a lane, without overlap
};

// An SVG document for light and dark color schemes. Lanes without boxes are left out; time begins at the first box.
std::string draw_timeline(const TimelinePicture& picture);

}  // namespace megalith
