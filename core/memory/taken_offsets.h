// Byte ranges of a block that are taken at each time, and the search for a free offset.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace megalith {

// Disjoint ranges of bytes, ascending. Adjacent ranges are merged.
class ByteRanges {
 public:
  struct Range {
    std::size_t begin, end;
  };
  bool empty() const { return ranges_.empty(); }
  void clear() { ranges_.clear(); }
  // Returns false if the ranges contain `range` already.
  bool add(const Range& range);
  // Returns the lowest offset from `offset` on at which `bytes` fit. Adds 1 + the ranges passed to `visits`.
  std::size_t lowest_free(std::size_t offset, std::size_t bytes, std::size_t& visits) const;

 private:
  std::vector<Range> ranges_;
};

// A segment tree over the times: a node covers an interval of times, its two children the halves. A buffer's interval
// is noted at the few nodes that together cover it.
class TakenOffsets {
 public:
  struct Times {
    std::uint32_t first, last;
  };
  // Times are numbers below `times`.
  explicit TakenOffsets(std::size_t times);

  void clear();
  // Returns the lowest offset at which `bytes` are free at all these times. Fast for a series of buffers of one size.
  std::size_t lowest_free(std::span<const Times> in_use, std::size_t bytes);
  void take(std::span<const Times> in_use, const ByteRanges::Range& range);
  // Number of ranges and lists read or written, a measure of the time spent.
  std::size_t visits() const { return visits_; }

 private:
  using Lists = std::vector<const ByteRanges*>;
  // Lower bound: `bytes` are not free below `offset`. Stays valid for more bytes, and after later calls of take.
  struct Bound {
    std::size_t bytes = 0, offset = 0;
    std::size_t of(std::size_t wanted);
  };
  struct Node {
    ByteRanges whole;  // buffers in use during all of the node's times, but not of its parent's
    ByteRanges any;    // buffers in use during some of the node's times, but not during all of its parent's
    // Bounds for these two and `whole` of the nodes above.
    Bound whole_bound, any_bound;
  };
  struct Query {
    Times in_use;
    std::size_t bytes;
    std::size_t lowest;  // lowest offset that any node allows
  };
  template <class Call>
  void for_each_part(const Times& in_use, const Call& call) const;
  void look(Query& query, std::size_t number, const Times& times, std::size_t offset);
  std::size_t lowest_in_all(const Lists& lists, std::size_t offset, std::size_t bytes);

  std::size_t leaves_ = 1;   // a power of two
  std::vector<Node> nodes_;  // the root is 1, the children of n are 2n and 2n + 1, the leaf of a time is leaves_ + time
  Lists above_, all_;        // lowest_free(): lists from the root to a node, and of all nodes
  std::size_t visits_ = 0;
};

}  // namespace megalith
