#include "core/checkpoint/shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>

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

std::int64_t Slice::numel() const {
  std::int64_t n = 1;
  for (std::size_t d = 0; d < start.size(); ++d) n *= stop[d] - start[d];
  return n;
}

std::string to_string(const Slice& slice) {
  std::string text = slice.flat ? "flat[" : "[";
  const auto at = [](const std::vector<std::int64_t>& bounds, std::size_t d) {
    return d < bounds.size() ? fmt::format("{}", bounds[d]) : "";
  };
  // A slice that is wrong may have more of the one than of the other.
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

namespace {

bool boxes_overlap(const Slice& a, const Slice& b) {
  for (std::size_t d = 0; d < a.start.size(); ++d) {
    if (std::max(a.start[d], b.start[d]) >= std::min(a.stop[d], b.stop[d])) return false;
  }
  return true;
}

}  // namespace

SliceRuns::SliceRuns(const Shape& shape, const Slice& slice) : done(slice.numel() == 0) {
  if (done) return;
  if (slice.flat) {
    global = first_ = slice.start[0];
    count = slice.stop[0] - slice.start[0];
    return;
  }
  // A run covers the last dim that is cut and everything inside of it.
  int cut = shape.rank() - 1;
  std::int64_t inner = 1;
  for (; cut > 0; --cut) {
    const auto d = static_cast<std::size_t>(cut);
    if (slice.start[d] != 0 || slice.stop[d] != shape[cut]) break;
    inner *= shape[cut];
  }
  count = inner;
  std::int64_t step = inner;
  for (int d = cut; d >= 0; --d) {
    const auto i = static_cast<std::size_t>(d);
    if (d == cut) {
      first_ = slice.start[i] * step;
      count = (slice.stop[i] - slice.start[i]) * inner;
    } else {
      start_.insert(start_.begin(), slice.start[i]);
      stop_.insert(stop_.begin(), slice.stop[i]);
      stride_.insert(stride_.begin(), step);
    }
    step *= shape[d];
  }
  at_ = start_;
  place();
}

void SliceRuns::place() {
  std::int64_t runs = 0;  // before this one
  global = first_;
  for (std::size_t d = 0; d < at_.size(); ++d) {
    runs = runs * (stop_[d] - start_[d]) + (at_[d] - start_[d]);
    global += at_[d] * stride_[d];
  }
  local = runs * count;
}

void SliceRuns::advance() {
  std::size_t d = at_.size();
  while (d > 0 && at_[d - 1] + 1 == stop_[d - 1]) {
    --d;
    at_[d] = start_[d];
  }
  if (d == 0) {
    done = true;
  } else {
    ++at_[d - 1];
    place();
  }
}

void SliceRuns::seek(std::int64_t flat) {
  if (done || global + count > flat) return;
  // The first run that starts at `rest` or later: its digits in the dims outside of a run, from the left.
  std::int64_t rest = flat - count + 1 - first_;
  std::size_t d = 0;
  for (; d < at_.size(); ++d) {
    at_[d] = rest / stride_[d];
    if (at_[d] < start_[d] || at_[d] >= stop_[d]) break;
    rest -= at_[d] * stride_[d];
  }
  if (d < at_.size() && at_[d] < start_[d]) {  // before the box in this dim: its first run there
    std::copy(start_.begin() + static_cast<std::ptrdiff_t>(d), start_.end(),
              at_.begin() + static_cast<std::ptrdiff_t>(d));
    return place();
  }
  const bool exact = d == at_.size() && rest == 0;
  // Beyond the box in this dim, or between two runs: the run after the last one here.
  for (std::size_t i = d; i < at_.size(); ++i) at_[i] = stop_[i] - 1;
  exact ? place() : advance();
}

CommonRuns::CommonRuns(const Shape& shape, const Slice& a, const Slice& b) : a_(shape, a), b_(shape, b) {
  if (!a.flat && !b.flat && !boxes_overlap(a, b)) a_.done = true;
}

std::optional<CommonRun> CommonRuns::next() {
  while (!a_.done && !b_.done) {
    const std::int64_t low = std::max(a_.global, b_.global);
    const std::int64_t a_end = a_.global + a_.count;
    const std::int64_t b_end = b_.global + b_.count;
    const CommonRun run = {.a_offset = a_.local + low - a_.global,
                           .b_offset = b_.local + low - b_.global,
                           .count = std::min(a_end, b_end) - low};
    if (run.count <= 0) {
      (a_end <= low ? a_ : b_).seek(low);
      continue;
    }
    if (a_end <= b_end) a_.advance();
    if (b_end <= a_end) b_.advance();
    return run;
  }
  return std::nullopt;
}

namespace {

// Compares slices in pairs; refuses to go on where that takes too long.
class Overlaps {
 public:
  Overlaps(const Shape& shape, std::size_t slices) : shape_(shape), left_(kMaxComparisons * slices) {}

  // Each: why two of them overlap, or "".
  static std::string among_ranges(std::span<const Slice* const> sorted) {
    for (std::size_t i = 1; i < sorted.size(); ++i) {
      if (sorted[i]->start[0] < sorted[i - 1]->stop[0]) return told(*sorted[i - 1], *sorted[i]);
    }
    return {};
  }
  std::string among_boxes(std::vector<const Slice*> boxes) {
    if (boxes.size() < 2) return {};
    const std::size_t cut = most_cut(boxes);
    std::sort(boxes.begin(), boxes.end(),
              [&](const Slice* a, const Slice* b) { return a->start[cut] < b->start[cut]; });
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      for (std::size_t j = i + 1; j < boxes.size() && boxes[j]->start[cut] < boxes[i]->stop[cut]; ++j) {
        if (left_-- == 0) return too_many();
        if (boxes_overlap(*boxes[i], *boxes[j])) return told(*boxes[j], *boxes[i]);
      }
    }
    return {};
  }

  // `ranges` in ascending order and apart. Leaps from run to range and back, whatever lies between.
  std::string between(const Slice& box, std::span<const Slice* const> ranges) {
    SliceRuns runs(shape_, box);
    while (!runs.done) {
      const auto range = std::upper_bound(ranges.begin(), ranges.end(), runs.global,
                                          [](std::int64_t at, const Slice* r) { return at < r->stop[0]; });
      if (range == ranges.end()) return {};
      if (left_-- == 0) return too_many();
      if ((*range)->start[0] < runs.global + runs.count) return told(box, **range);
      runs.seek((*range)->start[0]);
    }
    return {};
  }

 private:
  // The dim in which the boxes start at the most places: sorted by it, most of them lie apart.
  static std::size_t most_cut(const std::vector<const Slice*>& boxes) {
    std::size_t best = 0, most = 0;
    std::vector<std::int64_t> starts(boxes.size());
    for (std::size_t d = 0; d < boxes[0]->start.size(); ++d) {
      std::transform(boxes.begin(), boxes.end(), starts.begin(), [&](const Slice* box) { return box->start[d]; });
      std::sort(starts.begin(), starts.end());
      const auto places = static_cast<std::size_t>(std::unique(starts.begin(), starts.end()) - starts.begin());
      if (places > most) best = d, most = places;
    }
    return best;
  }
  static std::string told(const Slice& a, const Slice& b) {
    return fmt::format("slices {} and {} overlap", to_string(a), to_string(b));
  }
  static std::string too_many() { return "its slices interleave too much to be compared"; }

  const Shape& shape_;
  std::size_t left_;
};

}  // namespace

std::string cover_problem(const Shape& shape, std::span<const Slice> slices) {
  std::vector<const Slice*> ranges, boxes;
  std::int64_t covered = 0;
  for (const Slice& slice : slices) {
    if (slice.numel() == 0) continue;
    // Each is at most the whole, so the sum cannot wrap before it exceeds the whole.
    covered += slice.numel();
    if (covered > shape.numel()) return fmt::format("slice {} holds elements of another one", to_string(slice));
    (slice.flat ? ranges : boxes).push_back(&slice);
  }
  if (covered < shape.numel())
    return fmt::format("{} of {} elements are missing", shape.numel() - covered, shape.numel());
  std::sort(ranges.begin(), ranges.end(), [](const Slice* a, const Slice* b) { return a->start[0] < b->start[0]; });
  Overlaps overlaps(shape, slices.size());
  std::string problem = overlaps.among_ranges(ranges);
  if (problem.empty()) problem = overlaps.among_boxes(boxes);
  for (std::size_t i = 0; i < boxes.size() && problem.empty(); ++i) problem = overlaps.between(*boxes[i], ranges);
  return problem;
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
