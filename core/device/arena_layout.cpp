#include "core/device/arena_layout.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace megalith {

namespace {

constexpr std::size_t kTight = 512;  // of the bytes, what may be lost
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
  struct Life {
    std::int64_t begin, end;
    std::uint32_t buffer;
  };
  static constexpr std::size_t kStride = 32;  // lives from one list of those alive to the next
  // Of other buffers, for a layout: about a fifth of a second. A search takes half of what is left of them, and ends
  // after so many tries in vain.
  static constexpr std::size_t kMostVisits = 100'000'000;
  static constexpr int kInVain = 200;

  bool is_tight() const { return megalith::is_tight(best_end_, live_bytes_); }

  static std::int64_t time_in_use(const LayoutBuffer& buffer) {
    std::int64_t time = 0;
    for (const Lifetime& life : buffer.lives) time += life.end - life.begin + 1;
    return time;
  }

  // Where a buffer meets few others, they are found in order of time. Else it is compared with all that have places: by
  // their lives, or by a matrix of bits where some have several.
  void find_others() {
    bool have_one_each = true;
    for (std::uint32_t i = 0; i < buffers_.size(); ++i) {
      for (const Lifetime& life : buffers_[i].lives)
        lives_.push_back({.begin = life.begin, .end = life.end, .buffer = i});
      have_one_each = have_one_each && buffers_[i].lives.size() <= 1;
    }
    std::ranges::stable_sort(lives_, {}, &Life::begin);
    words_ = (buffers_.size() + 63) / 64;
    meet_few_ = count_pairs() <= buffers_.size() * words_;
    if (!meet_few_ && have_one_each) return;
    std::vector<std::uint32_t> alive;
    for (std::uint32_t n = 0; n < lives_.size(); ++n) {
      if (n % kStride == 0) {
        std::erase_if(alive, [&](std::uint32_t other) { return lives_[other].end < lives_[n].begin; });
        alive_.push_back(alive);
      }
      alive.push_back(n);
    }
    if (meet_few_) return;
    meet_.assign(buffers_.size() * words_, 0);
    for (const Life& life : lives_) {
      std::uint64_t* const row = &meet_[life.buffer * words_];
      for_each_beside(life, [row](std::uint32_t other) { row[other / 64] |= std::uint64_t{1} << (other % 64); });
    }
  }

  // Of lives that meet.
  std::size_t count_pairs() const {
    std::vector<std::int64_t> ends;
    for (const Life& life : lives_) ends.push_back(life.end);
    std::ranges::sort(ends);
    std::size_t pairs = 0, ended = 0;
    for (std::size_t begun = 0; begun < lives_.size(); ++begun) {
      while (ended < begun && ends[ended] < lives_[begun].begin) ++ended;
      pairs += begun - ended;
    }
    return pairs;
  }

  // Calls with the buffer of each life that meets this one, its own too.
  template <class Call>
  void for_each_beside(const Life& life, const Call& call) const {
    const auto first = std::ranges::lower_bound(lives_, life.begin, {}, &Life::begin) - lives_.begin();
    const auto stride = static_cast<std::size_t>(first) / kStride;
    for (const std::uint32_t n : alive_[stride])
      if (lives_[n].end >= life.begin) call(lives_[n].buffer);
    for (std::size_t n = stride * kStride; n < lives_.size() && lives_[n].begin <= life.end; ++n)
      if (lives_[n].end >= life.begin) call(lives_[n].buffer);
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
      if (meet_few_) {
        offsets_[i] = lowest_beside(i);
      } else if (!meet_.empty()) {
        const std::uint64_t* row = &meet_[i * words_];
        insert(i, [row](const Placed& o) { return (row[o.buffer / 64] >> (o.buffer % 64) & 1) != 0; });
      } else {
        const Lifetime life = buffers_[i].lives[0];
        insert(i, [life](const Placed& o) { return o.life.begin <= life.end && life.begin <= o.life.end; });
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
    Lifetime life;  // the first
    std::uint32_t buffer;
  };
  // Places it at the lowest offset that none of those placed takes that it `meets`.
  template <class Meets>
  void insert(std::uint32_t i, const Meets& meets) {
    const std::size_t bytes = buffers_[i].bytes;
    std::size_t offset = 0, seen = 0;
    for (; seen < placed_.size() && placed_[seen].begin < offset + bytes; ++seen) {
      const Placed& other = placed_[seen];
      if (other.end > offset && meets(other)) offset = other.end;
    }
    visits_ += seen;
    offsets_[i] = offset;
    placed_.insert(std::ranges::upper_bound(placed_, offset, {}, &Placed::begin),
                   {.begin = offset, .end = offset + bytes, .life = buffers_[i].lives[0], .buffer = i});
  }
  std::size_t lowest_beside(std::uint32_t i) {
    taken_.clear();
    for (const Lifetime& life : buffers_[i].lives) {
      for_each_beside({.begin = life.begin, .end = life.end, .buffer = i}, [&](std::uint32_t other) {
        if (offsets_[other] != kNowhere) taken_.emplace_back(offsets_[other], end_of(other));
        if (other != i) ++visits_;
      });
    }
    std::ranges::sort(taken_);
    visits_ += 8 * taken_.size();
    std::size_t offset = 0;
    for (const auto& [begin, end] : taken_) {
      if (begin >= offset + buffers_[i].bytes) break;
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
  std::vector<Life> lives_;                        // ascending by begin
  std::vector<std::vector<std::uint32_t>> alive_;  // of each kStride-th life: numbers of those before it that meet it
  bool meet_few_ = false;
  std::vector<std::uint64_t> meet_;  // the matrix, rows of words; or empty
  std::size_t words_ = 0;
  std::vector<std::size_t> offsets_, best_;
  std::size_t best_end_ = kNowhere;
  std::vector<Placed> placed_;                              // ascending; where buffers meet many
  std::vector<std::pair<std::size_t, std::size_t>> taken_;  // begin and end, of a buffer's others
  std::size_t visits_ = 0;
};

}  // namespace

bool is_tight(std::size_t bytes, std::size_t live_bytes) { return bytes <= live_bytes + live_bytes / kTight; }

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
