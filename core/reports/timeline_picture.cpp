#include "core/reports/timeline_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string_view>

namespace megalith {

namespace {

// In pixels.
constexpr double kWidth = 1000, kMargin = 12, kLeft = 176, kTall = 20, kLow = 11, kBetween = 3, kBetweenGroups = 12;
constexpr double kCharacter = 5.6;  // of a label, wide ones included

struct KindFacts {
  std::string_view name, color, shade;
};
constexpr KindFacts kKinds[] = {
    {"forward", "#3f7fc8", "#275a94"},
    {"backward", "#d9772b", "#a2551a"},
    {"weight gradient", "#9a63bd", "#6c4189"},
    {"gather of weights", "#1d9a8a", ""},
    {"reduction", "#c8487f", ""},
    {"dispatch of rows", "#6d9430", ""},
    {"return of rows", "#cda21f", ""},
    {"message", "#17a9c4", ""},
    {"copy to host", "#8d6b4a", ""},
    {"copy from host", "#bd9467", ""},
    {"optimizer", "#c23b3b", ""},
    {"wait", "#9aa4af66", ""},
    {"other", "#7d8894", ""},
};

constexpr std::string_view kStyle = R"(<style>
text{{font:11px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;fill:#1f2328}}
.t{{font-size:14px;font-weight:600}}.m{{font-size:10px;fill:#59636e}}.e{{text-anchor:end}}.c{{text-anchor:middle}}
.n{{font-size:10px;fill:#fff;text-anchor:middle;pointer-events:none}}.s{{font-size:9px}}
.p{{fill:#fff}}.l{{fill:#f2f4f7}}.g{{stroke:#d5dbe1}}.f{{fill:none;stroke:#1f2328;pointer-events:none}}
{}@media(prefers-color-scheme:dark){{text{{fill:#e6edf3}}.m{{fill:#9aa4af}}.n{{fill:#fff}}.p{{fill:#0d1117}}
.l{{fill:#1a212a}}.g{{stroke:#343d47}}.f{{stroke:#e6edf3}}}}
</style>
)";

// Tenths of a pixel, as text.
std::string pixels(std::int64_t tenths) {
  return tenths % 10 == 0 ? fmt::to_string(tenths / 10) : fmt::format("{}.{}", tenths / 10, tenths % 10);
}

std::string pixels(double value) { return pixels(std::int64_t{std::llround(10 * value)}); }

std::string xml(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else
      out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out;
}

std::string text_at(double x, double y, std::string_view style, std::string_view text) {
  return fmt::format("<text x=\"{}\" y=\"{}\" class=\"{}\">{}</text>\n", pixels(x), pixels(y), style, xml(text));
}

// Backward and weight gradient of one microbatch share a label.
BoxKind pass_of(BoxKind kind) { return kind == BoxKind::kBackwardWeight ? BoxKind::kBackward : kind; }

class Drawing {
 public:
  explicit Drawing(const TimelinePicture& picture) : picture_(picture), boxes_(picture.lanes.size()) {
    bool is_first = true;
    for (const TimelineBox& box : picture.boxes) {
      boxes_[box.lane].push_back(&box);
      begin_ = is_first ? box.start : std::min(begin_, box.start);
      end_ = is_first ? box.end : std::max(end_, box.end);
      is_first = false;
    }
    if (end_ <= begin_) end_ = begin_ + 1e-6;
  }

  std::string text() {
    y_ = 22;
    body_ += text_at(kMargin, y_, "t", picture_.title);
    draw_legend();
    const double top = y_;
    for (std::size_t lane = 0; lane < boxes_.size(); ++lane)
      if (!boxes_[lane].empty()) draw_lane(lane);
    const std::string axis = draw_axis(top);
    return fmt::format(
               "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\">\n",
               pixels(kWidth), pixels(y_)) +
           style() +
           fmt::format("<rect class=\"p\" width=\"{}\" height=\"{}\" rx=\"6\"/>\n", pixels(kWidth), pixels(y_)) +
           lanes_ + axis + body_ + "</svg>\n";
  }

 private:
  std::int64_t place(double seconds) const {  // in tenths of a pixel
    return std::llround(10 * (kLeft + (kWidth - kMargin - kLeft) * (seconds - begin_) / (end_ - begin_)));
  }

  std::string style() const {
    std::string colors;
    for (std::size_t kind = 0; kind < std::size(kKinds); ++kind) {
      if (!is_drawn(kind, false) && !is_drawn(kind, true)) continue;
      colors += fmt::format(".k{}{{fill:{}}}", kind, kKinds[kind].color);
      if (is_drawn(kind, true)) colors += fmt::format(".d{}{{fill:{}}}", kind, kKinds[kind].shade);
      colors += '\n';
    }
    return fmt::format(kStyle, colors);
  }

  bool is_drawn(std::size_t kind, bool shaded) const {
    return std::ranges::any_of(picture_.boxes, [&](const TimelineBox& box) {
      return static_cast<std::size_t>(box.kind) == kind && is_shaded(box) == shaded && box.end > box.start;
    });
  }
  static bool is_shaded(const TimelineBox& box) {
    return box.is_shaded && !kKinds[static_cast<std::size_t>(box.kind)].shade.empty();
  }

  void draw_legend() {
    y_ += 20;
    double x = kMargin;
    const auto add = [&](const std::string& swatch, std::string_view name) {
      const double width = 29 + kCharacter * static_cast<double>(name.size());
      if (x + width > kWidth) x = kMargin, y_ += 17;
      body_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"12\" height=\"10\" rx=\"2\" {}/>\n", pixels(x),
                           pixels(y_ - 9), swatch);
      body_ += text_at(x + 17, y_, "m", name);
      x += width;
    };
    for (std::size_t kind = 0; kind < std::size(kKinds); ++kind)
      if (is_drawn(kind, false) || is_drawn(kind, true)) add(fmt::format("class=\"k{}\"", kind), kKinds[kind].name);
    if (std::ranges::any_of(picture_.boxes, is_shaded)) add("class=\"d0\"", "odd chunk: darker");
    if (std::ranges::any_of(picture_.boxes, [](const TimelineBox& box) { return box.frame >= 0; }))
      add("class=\"f\"", "CUDA graph");
    y_ += 6;
  }

  void draw_lane(std::size_t lane) {
    const TimelineLane& facts = picture_.lanes[lane];
    const double height = facts.is_tall ? kTall : kLow;
    const bool begins = facts.group != group_;
    y_ += begins ? kBetweenGroups : kBetween;
    const double middle = y_ + height / 2 + 3.5;
    if (begins) body_ += text_at(kMargin, middle, "", group_ = facts.group);
    body_ += text_at(kLeft - 8, middle, "m e", facts.name);
    lanes_ += fmt::format("<rect class=\"l\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>\n", pixels(kLeft),
                          pixels(y_), pixels(kWidth - kMargin - kLeft), pixels(height));
    for (std::size_t i = 0; i < boxes_[lane].size(); ++i)
      draw_box(*boxes_[lane][i], height, place(i + 1 < boxes_[lane].size() ? boxes_[lane][i + 1]->start : end_));
    draw_frames(boxes_[lane], height);
    draw_labels(boxes_[lane], facts.is_tall, middle);
    y_ += height;
  }

  // What takes any time is a pixel wide where the next box leaves as much.
  void draw_box(const TimelineBox& box, double height, std::int64_t next) {
    const std::int64_t left = place(box.start);
    const std::int64_t right = std::max(place(box.end), box.end > box.start ? std::min(left + 10, next) : left);
    const std::int64_t gap = right - left > 20 ? 4 : 0;  // between neighbors that are wide enough
    body_ += fmt::format(
        "<rect class=\"{}{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"><title>{}\n{:.2f} us from {:.2f} us</title>"
        "</rect>\n",
        is_shaded(box) ? 'd' : 'k', static_cast<int>(box.kind), pixels(left), pixels(y_), pixels(right - left - gap),
        pixels(height), xml(box.title), 1e6 * (box.end - box.start), 1e6 * (box.start - begin_));
  }

  void draw_frames(const std::vector<const TimelineBox*>& boxes, double height) {
    for (std::size_t i = 0; i < boxes.size();) {
      const std::size_t first = i;
      while (i < boxes.size() && boxes[i]->frame == boxes[first]->frame) ++i;
      if (boxes[first]->frame < 0) continue;
      const std::int64_t left = place(boxes[first]->start), right = place(boxes[i - 1]->end);
      body_ +=
          fmt::format("<rect class=\"f\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"2\"/>\n", pixels(left + 2),
                      pixels(y_ - 1), pixels(std::max(right - left - 8, std::int64_t{2})), pixels(height + 2));
    }
  }

  // In the box nearest to the middle of those that share the label, of the ones that have the width.
  void draw_labels(const std::vector<const TimelineBox*>& boxes, bool is_tall, double middle) {
    constexpr std::int64_t kNarrow = 60;  // boxes without a label in between, gaps likewise
    for (std::size_t i = 0; i < boxes.size();) {
      const TimelineBox& first = *boxes[i];
      const auto width = static_cast<std::int64_t>(10 * (kCharacter * static_cast<double>(first.label.size()) + 2));
      std::vector<const TimelineBox*> joined{&first};
      for (++i; i < boxes.size() && place(boxes[i]->start) - place(joined.back()->end) <= kNarrow; ++i) {
        const TimelineBox& next = *boxes[i];
        if (next.label == first.label && pass_of(next.kind) == pass_of(first.kind))
          joined.push_back(&next);
        else if (!next.label.empty() || place(next.end) - place(next.start) > kNarrow)
          break;
      }
      const std::int64_t wanted = (place(first.start) + place(joined.back()->end)) / 2;
      if (first.label.empty() || place(joined.back()->end) - place(first.start) < width) continue;
      std::optional<std::int64_t> at;
      for (const TimelineBox* box : joined) {
        if (place(box->end) - place(box->start) < width) continue;
        const std::int64_t in = std::clamp(wanted, place(box->start) + width / 2, place(box->end) - width / 2);
        if (!at || std::abs(in - wanted) < std::abs(*at - wanted)) at = in;
      }
      body_ += text_at(static_cast<double>(at.value_or(wanted)) / 10, middle, is_tall ? "n" : "n s", first.label);
    }
  }

  // A step of 1, 2 or 5 in the unit that gives at most ten marks.
  std::string draw_axis(double top) {
    const double span = end_ - begin_;
    const double unit = span < 2e-3 ? 1e-6 : span < 2 ? 1e-3 : 1;
    double step = std::pow(10, std::floor(std::log10(span / unit / 10)));
    for (const double times : {2.0, 2.5, 2.0})
      if (span / unit / step > 10) step *= times;
    std::string axis;
    y_ += 6;
    for (int mark = 0; mark * step <= span / unit * (1 + 1e-9); ++mark) {
      const std::int64_t x = place(begin_ + mark * step * unit);
      axis += fmt::format("<path class=\"g\" d=\"M{} {}V{}\"/>\n", pixels(x), pixels(top + 6), pixels(y_));
      body_ += text_at(static_cast<double>(x) / 10, y_ + 12, "m c", fmt::format("{:.10g}", mark * step));
    }
    body_ += text_at(kLeft - 8, y_ + 12, "m e",
                     fmt::format("time, {}", unit == 1e-6   ? "us"
                                             : unit == 1e-3 ? "ms"
                                                            : "s"));
    y_ += 22;
    return axis;
  }

  const TimelinePicture& picture_;
  std::vector<std::vector<const TimelineBox*>> boxes_;  // by lane
  double begin_ = 0, end_ = 0, y_ = 0;
  std::string group_, lanes_, body_;
};

}  // namespace

std::string draw_timeline(const TimelinePicture& picture) { return Drawing(picture).text(); }

}  // namespace megalith
