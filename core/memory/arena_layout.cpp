#include "core/memory/arena_layout.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "core/memory/taken_offsets.h"

namespace megalith {

namespace {

// Tolerated loss: a 512th of the bytes, or a page of a GPU, its allocation unit.
constexpr std::size_t kTight = 512, kPage = std::size_t{2} << 20;
constexpr std::size_t kNowhere = std::numeric_limits<std::size_t>::max();

using Order = std::vector<std::uint32_t>;  // buffer indices

// Lifetimes of all buffers in the time of TakenOffsets. Overlaps start at the beginning of a life, so that no other
// time counts.
struct InUse {
  std::vector<std::int64_t> begins;        // unique, ascending
  std::vector<TakenOffsets::Times> lives;  // grouped by buffer
  std::vector<std::size_t> first = {0};    // a buffer's first life; one more entry after the last

  std::span<const TakenOffsets::Times> of(std::uint32_t buffer) const {
    return std::span(lives).subspan(first[buffer], first[buffer + 1] - first[buffer]);
  }
};

InUse times_of(const std::vector<LayoutBuffer>& buffers) {
  InUse times;
  for (const LayoutBuffer& buffer : buffers)
    for (const Lifetime& life : buffer.lives) times.begins.push_back(life.begin);
  std::ranges::sort(times.begins);
  times.begins.erase(std::unique(times.begins.begin(), times.begins.end()), times.begins.end());
  const auto number = [&](std::int64_t time) {  // index of the last beginning up to `time`
    return static_cast<std::uint32_t>(std::ranges::upper_bound(times.begins, time) - times.begins.begin() - 1);
  };
  for (const LayoutBuffer& buffer : buffers) {
    for (const Lifetime& life : buffer.lives)
      times.lives.push_back({.first = number(life.begin), .last = number(life.end)});
    times.first.push_back(times.lives.size());
  }
  return times;
}

// Placement of a few buffers: each is compared with all placed ones, which is faster than a tree.
class FewBuffers {
 public:
  static constexpr std::size_t kMost = 2048;

  FewBuffers(const InUse& times, std::size_t count) : words_((count + 63) / 64), meets_(count * words_, 0) {
    struct Life {
      TakenOffsets::Times times;
      std::uint32_t buffer;
    };
    std::vector<Life> lives, alive;
    for (std::uint32_t i = 0; i < count; ++i)
      for (const TakenOffsets::Times& life : times.of(i)) lives.push_back({.times = life, .buffer = i});
    std::ranges::stable_sort(lives, {}, [](const Life& life) { return life.times.first; });
    for (const Life& life : lives) {
      std::erase_if(alive, [&](const Life& other) { return other.times.last < life.times.first; });
      for (const Life& other : alive) {
        row(life.buffer)[other.buffer / 64] |= std::uint64_t{1} << (other.buffer % 64);
        row(other.buffer)[life.buffer / 64] |= std::uint64_t{1} << (life.buffer % 64);
      }
      alive.push_back(life);
    }
  }

  void clear() { placed_.clear(); }
  // Places the buffer at the lowest offset that is free during all of its lives.
  std::size_t place(std::uint32_t buffer, std::size_t bytes) {
    const std::uint64_t* const meets = row(buffer);
    std::size_t offset = 0, seen = 0;
    for (; seen < placed_.size() && placed_[seen].begin < offset + bytes; ++seen) {
      const Placed& other = placed_[seen];
      if (other.end > offset && (meets[other.buffer / 64] >> (other.buffer % 64) & 1) != 0) offset = other.end;
    }
    visits_ += seen;
    placed_.insert(std::ranges::upper_bound(placed_, offset, {}, &Placed::begin),
                   {.begin = offset, .end = offset + bytes, .buffer = buffer});
    return offset;
  }
  std::size_t visits() const { return visits_; }

 private:
  struct Placed {
    std::size_t begin, end;
    std::uint32_t buffer;
  };
  std::uint64_t* row(std::uint32_t buffer) { return &meets_[buffer * words_]; }

  std::size_t words_;
  std::vector<std::uint64_t> meets_;  // a bit for each pair
  std::vector<Placed> placed_;        // ascending
  std::size_t visits_ = 0;
};

class Layout {
 public:
  Layout(const std::vector<LayoutBuffer>& buffers, std::size_t live_bytes)
      : buffers_(buffers), live_bytes_(live_bytes), times_(times_of(buffers)) {
    if (buffers.size() <= FewBuffers::kMost) {
      few_.emplace(times_, buffers.size());
    } else {
      taken_.emplace(times_.begins.size());
    }
  }

  // Order of placement: largest first, then longest life. If that leaves gaps, as many short lives do, earliest first.
  // If both leave gaps, a search.
  void find(bool searches) {
    std::vector<Order> orders = {
        order_by([&](const LayoutBuffer& b) { return std::pair(b.bytes, time_in_use(b)); }),
        order_by([&](const LayoutBuffer& b) { return std::pair(b.bytes, -b.lives[0].begin); })};
    std::vector<std::size_t> ends;
    for (const Order& order : orders) {
      ends.push_back(place(order));
      if (is_tight()) return;
    }
    if (!searches) return;
    if (ends[1] < ends[0]) std::swap(orders[0], orders[1]);
    for (const Earlier earlier : {Earlier::kFirst, Earlier::kHalfway}) {
      for (const Order& order : orders) {
        search(order, earlier);
        if (is_tight()) return;
      }
    }
  }

  const std::vector<std::size_t>& offsets() const { return best_; }

 private:
  enum class Earlier : std::uint8_t { kFirst, kHalfway };
  // Visits of other buffers for one layout: about 0.2 s; a visit of TakenOffsets is slower. A search spends half of the
  // remaining visits, and ends after kMaxFailures tries without a gain.
  static constexpr std::size_t kMaxVisits = 100'000'000, kVisitOfTaken = 5;
  static constexpr int kMaxFailures = 200;

  bool is_tight() const { return megalith::is_tight(best_end_, live_bytes_); }

  std::size_t visits() const { return few_ ? few_->visits() : kVisitOfTaken * taken_->visits(); }

  static std::int64_t time_in_use(const LayoutBuffer& buffer) {
    std::int64_t time = 0;
    for (const Lifetime& life : buffer.lives) time += life.end - life.begin + 1;
    return time;
  }

  template <class Rank>
  Order order_by(const Rank& rank) const {
    using Value = decltype(rank(buffers_[0]));
    std::vector<std::pair<Value, std::uint32_t>> ranked;
    for (std::uint32_t i = 0; i < buffers_.size(); ++i)
      if (!buffers_[i].lives.empty()) ranked.emplace_back(rank(buffers_[i]), i);
    std::ranges::stable_sort(ranked, [](const auto& a, const auto& b) { return a.first > b.first; });
    Order order;
    for (const auto& [value, i] : ranked) order.push_back(i);
    return order;
  }

  // Places each buffer at the lowest offset that is free during all of its lives. Returns the end of the highest one.
  std::size_t place(const Order& order) {
    offsets_.assign(buffers_.size(), kNowhere);
    if (few_) few_->clear();
    if (taken_) taken_->clear();
    std::size_t end = 0;
    for (const std::uint32_t i : order) {
      if (few_) {
        offsets_[i] = few_->place(i, buffers_[i].bytes);
      } else {
        offsets_[i] = taken_->lowest_free(times_.of(i), buffers_[i].bytes);
        taken_->take(times_.of(i), {.begin = offsets_[i], .end = end_of(i)});
      }
      end = std::max(end, end_of(i));
      if (end >= best_end_ && buffers_[i].bytes < live_bytes_ / kTight) break;  // moving small ones would not help
    }
    if (end < best_end_) {
      best_end_ = end;
      best_ = offsets_;
    }
    return end;
  }

  // Repeats the placement; buffers that ended above the live bytes come earlier in the next try.
  void search(Order order, Earlier earlier) {
    const std::size_t last_visit = visits() + (visits() < kMaxVisits ? (kMaxVisits - visits()) / 2 : 0);
    std::size_t lowest = kNowhere;
    for (int failures = 0; failures <= kMaxFailures && visits() < last_visit; ++failures) {
      const std::size_t end = place(order);
      if (is_tight()) return;
      if (end < lowest) {
        lowest = end;
        failures = 0;
      }
      const auto is_high = [&](std::uint32_t i) { return offsets_[i] != kNowhere && end_of(i) > live_bytes_; };
      if (earlier == Earlier::kFirst) {
        std::stable_partition(order.begin(), order.end(), is_high);
      } else {
        move_halfway(order, is_high);
      }
    }
  }

  template <class IsHigh>
  static void move_halfway(Order& order, const IsHigh& is_high) {
    std::vector<std::pair<std::size_t, std::uint32_t>> places;
    for (std::size_t n = 0; n < order.size(); ++n) places.emplace_back(is_high(order[n]) ? n : 2 * n + 1, order[n]);
    std::ranges::stable_sort(places, {}, [](const auto& place) { return place.first; });
    std::ranges::transform(places, order.begin(), [](const auto& place) { return place.second; });
  }

  std::size_t end_of(std::uint32_t i) const { return offsets_[i] + buffers_[i].bytes; }

  const std::vector<LayoutBuffer>& buffers_;
  std::size_t live_bytes_;
  InUse times_;
  std::optional<FewBuffers> few_;
  std::optional<TakenOffsets> taken_;  // for many buffers
  std::vector<std::size_t> offsets_, best_;
  std::size_t best_end_ = kNowhere;
};

}  // namespace

bool is_tight(std::size_t bytes, std::size_t live_bytes) {
  return bytes <= live_bytes + std::max(live_bytes / kTight, kPage);
}

std::size_t lay_out(std::vector<LayoutBuffer>& buffers, std::size_t live_bytes, bool searches) {
  Layout layout(buffers, live_bytes);
  layout.find(searches);
  std::size_t end = 0;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    LayoutBuffer& buffer = buffers[i];
    buffer.offset = buffer.lives.empty() ? 0 : layout.offsets()[i];
    end = std::max(end, buffer.offset + buffer.bytes);
  }
  return end;
}

}  // namespace megalith
