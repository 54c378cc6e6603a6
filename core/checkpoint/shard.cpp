#include "core/checkpoint/shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <numeric>
#include <set>

#include "core/base/error.h"

namespace megalith {

std::string shard_name(std::string_view kind, std::string_view parameter) {
  return fmt::format("{}/{}", kind, parameter);
}

std::string_view kind_of(std::string_view name) {
  const std::size_t slash = name.find('/');
  return slash == std::string_view::npos ? std::string_view{} : name.substr(0, slash);
}

Slice Slice::whole(const Shape& shape) {
  Slice slice;
  for (int d = 0; d < shape.rank(); ++d) {
    slice.start.push_back(0);
    slice.stop.push_back(shape[d]);
  }
  return slice;
}

Slice Slice::box(std::vector<std::int64_t> start, std::vector<std::int64_t> stop) {
  return {.flat = false, .start = std::move(start), .stop = std::move(stop)};
}

Slice Slice::range(std::int64_t start, std::int64_t stop) { return {.flat = true, .start = {start}, .stop = {stop}}; }

std::vector<std::int64_t> Slice::extents() const {
  std::vector<std::int64_t> extents = stop;
  std::ranges::transform(stop, start, extents.begin(), std::minus());
  return extents;
}

std::int64_t Slice::numel() const {
  // The product runs from the left: an extent of 0 comes ahead of a product that would overflow (see slice_problem).
  return std::inner_product(stop.begin(), stop.end(), start.begin(), std::int64_t{1}, std::multiplies(), std::minus());
}

std::string to_string(const Slice& slice) {
  std::string text = slice.flat ? "flat[" : "[";
  const auto at = [](const std::vector<std::int64_t>& bounds, std::size_t d) {
    return d < bounds.size() ? fmt::format("{}", bounds[d]) : "";
  };
  // An invalid slice may have unequal numbers of starts and stops.
  for (std::size_t d = 0; d < std::max(slice.start.size(), slice.stop.size()); ++d) {
    text += fmt::format("{}{}:{}", d == 0 ? "" : ",", at(slice.start, d), at(slice.stop, d));
  }
  return text + "]";
}

std::optional<Slice> slice_from_string(std::string_view text) {
  Slice slice;
  std::string_view rest = text;
  if (rest.starts_with("flat")) {
    slice.flat = true;
    rest.remove_prefix(4);
  }
  const auto take = [&](char before, std::vector<std::int64_t>& into) {
    if (rest.empty() || rest.front() != before) return false;
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(rest.data() + 1, rest.data() + rest.size(), value);
    if (error != std::errc{}) return false;
    into.push_back(value);
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    return true;
  };
  while (rest != "]" && rest != "[]" && slice.start.size() < kMaxDims) {
    if (!take(slice.start.empty() ? '[' : ',', slice.start) || !take(':', slice.stop)) return std::nullopt;
  }
  if (to_string(slice) != text) return std::nullopt;  // one spelling only
  return slice;
}

std::optional<std::int64_t> checked_bytes(const Shape& shape, DType dtype) {
  auto bytes = static_cast<std::int64_t>(size_of(dtype));
  for (int d = 0; d < shape.rank(); ++d) {
    if (__builtin_mul_overflow(bytes, shape[d], &bytes)) return std::nullopt;
  }
  return bytes;
}

std::string slice_problem(const Shape& shape, const Slice& slice) {
  if (!checked_bytes(shape, DType::kInt64)) return "the size of its shape overflows 64 bits";
  const std::size_t dims = slice.flat ? 1 : static_cast<std::size_t>(shape.rank());
  if (slice.start.size() != dims || slice.stop.size() != dims) {
    return fmt::format("slice {} has not {} dims", to_string(slice), dims);
  }
  for (std::size_t d = 0; d < dims; ++d) {
    const std::int64_t extent = slice.flat ? shape.numel() : shape[static_cast<int>(d)];
    if (slice.start[d] < 0 || slice.start[d] > slice.stop[d] || slice.stop[d] > extent) {
      return fmt::format("slice {} leaves the extent {} of dim {}", to_string(slice), extent, d);
    }
  }
  return {};
}

std::vector<Slice> boxes_of_range(const Shape& shape, std::int64_t begin, std::int64_t end) {
  std::vector<Slice> boxes;
  while (begin < end) {
    // The largest box that begins here: full extent in dims after `d`, one index in dims ahead of `d`.
    int d = shape.rank() - 1;
    std::int64_t inner = 1;
    for (; d > 0 && begin % (inner * shape[d]) == 0 && end - begin >= inner * shape[d]; --d) inner *= shape[d];
    Slice box = Slice::whole(shape);
    std::int64_t rest = begin / inner;
    for (int outer = d; outer >= 0; --outer) {
      const auto i = static_cast<std::size_t>(outer);
      box.start[i] = rest % shape[outer];
      box.stop[i] = outer < d ? box.start[i] + 1 : std::min(shape[outer], box.start[i] + (end - begin) / inner);
      rest /= shape[outer];
    }
    begin += box.numel();
    boxes.push_back(std::move(box));
  }
  return boxes;
}

namespace {

std::vector<Slice> boxes_of(const Shape& shape, const Slice& slice) {
  if (slice.flat) return boxes_of_range(shape, slice.start[0], slice.stop[0]);
  return {slice};
}

bool boxes_overlap(const Slice& a, const Slice& b) {
  for (std::size_t d = 0; d < a.start.size(); ++d) {
    if (std::max(a.start[d], b.start[d]) >= std::min(a.stop[d], b.stop[d])) return false;
  }
  return true;
}

Slice common_part(Slice a, const Slice& b) {
  std::ranges::transform(a.start, b.start, a.start.begin(), std::ranges::max);
  std::ranges::transform(a.stop, b.stop, a.stop.begin(), std::ranges::min);
  return a;
}

// Layout of a slice's elements in the slice's memory.
class Layout {
 public:
  Layout(const Shape& shape, const Slice& slice) {
    const Slice box = slice.flat ? Slice::whole(shape) : slice;
    std::int64_t stride = 1;
    strides_.resize(box.start.size());
    for (std::size_t d = strides_.size(); d-- > 0; stride *= box.stop[d] - box.start[d]) strides_[d] = stride;
    first_ = slice.flat ? slice.start[0] : offset(box.start);
  }
  std::int64_t offset(const std::vector<std::int64_t>& index) const {
    return std::inner_product(index.begin(), index.end(), strides_.begin(), -first_);
  }
  bool is_one_run(const Slice& box) const {
    std::vector<std::int64_t> last = box.stop;
    for (std::int64_t& index : last) --index;
    return offset(last) - offset(box.start) + 1 == box.numel();
  }

 private:
  std::vector<std::int64_t> strides_;  // by dim
  std::int64_t first_ = 0;
};

// Adds the runs of a box that lies in both slices; dims ahead of `d` have one index.
void add_runs(Slice box, std::size_t d, const Layout& a, const Layout& b, std::vector<CommonRun>& runs) {
  if (a.is_one_run(box) && b.is_one_run(box)) {
    runs.push_back({.a_offset = a.offset(box.start), .b_offset = b.offset(box.start), .count = box.numel()});
    return;
  }
  for (const std::int64_t stop = box.stop[d]; box.start[d] < stop; ++box.start[d]) {
    box.stop[d] = box.start[d] + 1;
    add_runs(box, d + 1, a, b, runs);
  }
}

}  // namespace

std::vector<CommonRun> common_runs(const Shape& shape, const Slice& a, const Slice& b) {
  std::vector<CommonRun> runs;
  const Layout in_a(shape, a), in_b(shape, b);
  const std::vector<Slice> boxes_of_b = boxes_of(shape, b);
  for (const Slice& box : boxes_of(shape, a)) {
    for (const Slice& other : boxes_of_b) {
      if (boxes_overlap(box, other)) add_runs(common_part(box, other), 0, in_a, in_b, runs);
    }
  }
  return runs;
}

namespace {

struct Box {
  Slice slice;
  const Slice* of;  // the full slice, for messages
};

std::string describe_overlap(const Slice& a, const Slice& b) {
  return fmt::format("slices {} and {} overlap", to_string(a), to_string(b));
}

// Returns the dim with the most distinct starts. Boxes sorted by that dim rarely overlap in it.
std::size_t max_cut(const std::vector<Box>& boxes) {
  std::size_t best = 0, most = 0;
  for (std::size_t d = 0; d < boxes[0].slice.start.size(); ++d) {
    std::set<std::int64_t> starts;
    for (const Box& box : boxes) starts.insert(box.slice.start[d]);
    if (starts.size() > most) best = d, most = starts.size();
  }
  return best;
}

constexpr const char* kInterleaved = "its slices interleave too much to be compared";

// Returns a message for two overlapping boxes, or "".
std::string overlap_problem(std::vector<Box> boxes, std::size_t comparisons) {
  if (boxes.size() < 2) return {};
  const std::size_t d = max_cut(boxes);
  std::ranges::sort(boxes, {}, [d](const Box& box) { return box.slice.start[d]; });
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    for (std::size_t j = i + 1; j < boxes.size() && boxes[j].slice.start[d] < boxes[i].slice.stop[d]; ++j) {
      if (comparisons-- == 0) return kInterleaved;
      if (boxes_overlap(boxes[i].slice, boxes[j].slice)) return describe_overlap(*boxes[i].of, *boxes[j].of);
    }
  }
  return {};
}

}  // namespace

std::string cover_problem(const Shape& shape, std::span<const Slice> slices) {
  std::vector<const Slice*> ranges;
  std::vector<Box> boxes;
  std::int64_t covered = 0;
  for (const Slice& slice : slices) {
    if (slice.numel() == 0) continue;
    // Each slice has at most all elements, so the sum exceeds numel() earlier than it can wrap.
    covered += slice.numel();
    if (covered > shape.numel()) return fmt::format("slice {} holds elements of another one", to_string(slice));
    if (slice.flat) {
      ranges.push_back(&slice);
    } else {
      boxes.push_back({slice, &slice});
    }
  }
  if (covered < shape.numel())
    return fmt::format("{} of {} elements are missing", shape.numel() - covered, shape.numel());
  std::ranges::sort(ranges, {}, [](const Slice* range) { return range->start[0]; });
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i]->start[0] < ranges[i - 1]->stop[0]) return describe_overlap(*ranges[i - 1], *ranges[i]);
  }
  if (boxes.empty()) return {};
  constexpr std::size_t kMaxRanges = 1 << 16;  // limit of ranges next to boxes, since each range becomes several boxes
  if (ranges.size() > kMaxRanges) return kInterleaved;
  for (const Slice* range : ranges) {
    for (Slice& box : boxes_of(shape, *range)) boxes.push_back({std::move(box), range});
  }
  return overlap_problem(std::move(boxes), kMaxComparisons * slices.size());
}

std::vector<int> assign_writers(std::span<const Shard> shards, int world) {
  require(world > 0, "assign_writers needs a rank");
  std::vector<std::size_t> order(shards.size());
  std::iota(order.begin(), order.end(), 0);
  const auto bytes = [&](std::size_t i) {
    return shards[i].slice.numel() * static_cast<std::int64_t>(size_of(shards[i].dtype));
  };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return bytes(a) > bytes(b); });
  std::vector<std::int64_t> load(static_cast<std::size_t>(world), 0);
  std::vector<int> writer(shards.size(), 0);
  for (const std::size_t i : order) {
    const auto lightest = std::min_element(load.begin(), load.end());
    writer[i] = static_cast<int>(lightest - load.begin());
    *lightest += bytes(i);
  }
  return writer;
}

}  // namespace megalith
