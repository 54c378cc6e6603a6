#include "core/device/arena_layout.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace megalith {

namespace {

constexpr std::size_t kNowhere = std::numeric_limits<std::size_t>::max();

using Order = std::vector<std::uint32_t>;  // of buffers, by number

class Layout {
 public:
  Layout(const std::vector<LayoutBuffer>& buffers, std::size_t live_bytes)
      : buffers_(buffers), live_bytes_(live_bytes) {
    find_others();
  }

  // Largest first. Among buffers of one size first those in use for longest; if that leaves gaps, as where many follow
  // each other closely, those that begin first. If both leave gaps, a search.
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
  // Of other buffers, for a layout: about a fifth of a second. A search takes half of what is left of them, and ends
  // after so many tries in vain.
  static constexpr std::size_t kMostVisits = 100'000'000;
  static constexpr int kInVain = 200;
  static constexpr std::size_t kTight = 512;  // of the bytes, what may be lost

  bool is_tight() const { return best_end_ <= live_bytes_ + live_bytes_ / kTight; }

  static std::int64_t time_in_use(const LayoutBuffer& buffer) {
    std::int64_t time = 0;
    for (const Lifetime& life : buffer.lives) time += life.end - life.begin + 1;
    return time;
  }

  // Of each buffer those that are alive while it is: lists, or a matrix of bits where that is smaller.
  void find_others() {
    std::vector<std::pair<Lifetime, std::uint32_t>> lives;
    for (std::uint32_t i = 0; i < buffers_.size(); ++i)
      for (const Lifetime& life : buffers_[i].lives) lives.emplace_back(life, i);
    std::ranges::stable_sort(lives, {}, [](const auto& life) { return life.first.begin; });
    std::size_t pairs = 0;
    for_each_pair(lives, [&pairs](std::uint32_t, std::uint32_t) { ++pairs; });
    words_ = (buffers_.size() + 63) / 64;
    if (2 * pairs * sizeof(std::uint32_t) > buffers_.size() * words_ * sizeof(std::uint64_t)) {
      meet_.assign(buffers_.size() * words_, 0);
      return for_each_pair(lives, [&](std::uint32_t a, std::uint32_t b) {
        meet_[a * words_ + b / 64] |= std::uint64_t{1} << (b % 64);
        meet_[b * words_ + a / 64] |= std::uint64_t{1} << (a % 64);
      });
    }
    others_.resize(buffers_.size());
    for_each_pair(lives, [&](std::uint32_t a, std::uint32_t b) {
      others_[a].push_back(b);
      others_[b].push_back(a);
    });
  }

  // Of two buffers that meet in several lives, as often.
  template <class Call>
  static void for_each_pair(const std::vector<std::pair<Lifetime, std::uint32_t>>& lives, const Call& call) {
    std::vector<std::pair<std::int64_t, std::uint32_t>> alive;  // until when, and who
    for (const auto& [life, i] : lives) {
      std::erase_if(alive, [begin = life.begin](const auto& other) { return other.first < begin; });
      for (const auto& [end, other] : alive) call(i, other);
      alive.emplace_back(life.end, i);
    }
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

  // One after the other at the lowest offset that is free during all of its lives. Returns where the highest one ends.
  std::size_t place(const Order& order) {
    offsets_.assign(buffers_.size(), kNowhere);
    placed_.clear();
    std::size_t end = 0;
    for (const std::uint32_t i : order) {
      if (others_.empty()) {
        offsets_[i] = lowest_by(&meet_[i * words_], buffers_[i].bytes);
        const Placed placed{.begin = offsets_[i], .end = end_of(i), .buffer = i};
        placed_.insert(std::ranges::upper_bound(placed_, placed.begin, {}, &Placed::begin), placed);
      } else {
        offsets_[i] = lowest_beside(others_[i], buffers_[i].bytes);
      }
      end = std::max(end, end_of(i));
      if (end >= best_end_ && buffers_[i].bytes < live_bytes_ / kTight) break;  // small ones would not help
    }
    if (end < best_end_) {
      best_end_ = end;
      best_ = offsets_;
    }
    return end;
  }

  struct Placed {
    std::size_t begin, end;
    std::uint32_t buffer;
  };
  // The lowest offset at which so many bytes are free, of a buffer with this row of the matrix.
  std::size_t lowest_by(const std::uint64_t* meet, std::size_t bytes) {
    std::size_t offset = 0, seen = 0;
    for (; seen < placed_.size() && placed_[seen].begin < offset + bytes; ++seen) {
      const Placed& other = placed_[seen];
      if (other.end > offset && (meet[other.buffer / 64] >> (other.buffer % 64) & 1) != 0) offset = other.end;
    }
    visits_ += seen;
    return offset;
  }
  std::size_t lowest_beside(const std::vector<std::uint32_t>& others, std::size_t bytes) {
    taken_.clear();
    for (const std::uint32_t other : others)
      if (offsets_[other] != kNowhere) taken_.emplace_back(offsets_[other], end_of(other));
    std::ranges::sort(taken_);
    visits_ += others.size() + 8 * taken_.size();
    std::size_t offset = 0;
    for (const auto& [begin, end] : taken_) {
      if (begin >= offset + bytes) break;
      offset = std::max(offset, end);
    }
    return offset;
  }

  // Those that ended above the most that is alive come earlier in the next try.
  void search(Order order, Earlier earlier) {
    const std::size_t last_visit = visits_ + (visits_ < kMostVisits ? (kMostVisits - visits_) / 2 : 0);
    std::size_t lowest = kNowhere;
    for (int in_vain = 0; in_vain <= kInVain && visits_ < last_visit; ++in_vain) {
      const std::size_t end = place(order);
      if (is_tight()) return;
      if (end < lowest) {
        lowest = end;
        in_vain = 0;
      }
      const auto is_high = [&](std::uint32_t i) { return offsets_[i] != kNowhere && end_of(i) > live_bytes_; };
      if (earlier == Earlier::kFirst) {
        std::ranges::stable_partition(order, is_high);
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
  std::vector<std::vector<std::uint32_t>> others_;  // by buffer; empty where there is a matrix
  std::vector<std::uint64_t> meet_;                 // the matrix: rows of words
  std::size_t words_ = 0;
  std::vector<std::size_t> offsets_, best_;
  std::size_t best_end_ = kNowhere;
  std::vector<Placed> placed_;                              // ascending; with a matrix
  std::vector<std::pair<std::size_t, std::size_t>> taken_;  // begin and end, of a buffer's others
  std::size_t visits_ = 0;
};

}  // namespace

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
