// Which bytes of a block are taken at which times, and where a buffer finds room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace megalith {

// Disjoint ranges of bytes, ascending. Ranges that touch are one.
class ByteRanges {
 public:
  struct Range {
    std::size_t begin, end;
  };
  bool empty() const { return ranges_.empty(); }
  void clear() { ranges_.clear(); }
  // False if all of it was there.
  bool add(const Range& range);
  // The lowest offset from `offset` on at which `bytes` meet no range. Adds to `visits` one and the ranges in the way.
  std::size_t lowest_free(std::size_t offset, std::size_t bytes, std::size_t& visits) const;

 private:
  std::vector<Range> ranges_;
};

// A tree over the times: a node stands for a part of them, its two children for the halves. A buffer that is in use
// from one time to another is noted at the few nodes whose parts make up these times.
class TakenOffsets {
 public:
  struct Times {
    std::uint32_t first, last;
  };
  // Times are numbers below `times`.
  explicit TakenOffsets(std::size_t times);

  void clear();
  // The lowest offset at which `bytes` are free at each of these times. Fast for many buffers of one size in a row.
  std::size_t lowest_free(std::span<const Times> in_use, std::size_t bytes);
  void take(std::span<const Times> in_use, const ByteRanges::Range& range);
  // Ranges and lists of them that were read or written, which is most of the time spent.
  std::size_t visits() const { return visits_; }

 private:
  using Lists = std::vector<const ByteRanges*>;
  // So many bytes are not free below `offset`. More bytes are not either, nor are they later, when more is taken.
  struct Bound {
    std::size_t bytes = 0, offset = 0;
    std::size_t of(std::size_t wanted);
  };
  struct Node {
    ByteRanges whole;  // of buffers in use in the whole of the node's times, but not of its parent's
    ByteRanges any;    // of buffers in use in any part of the node's times, but not in the whole of its parent's
    // In these and in `whole` of the nodes above.
    Bound beside_whole, beside_any;
  };
  struct Query {
    Times in_use;
    std::size_t bytes;
    std::size_t lowest;  // that any node allows
  };
  template <class Call>
  void for_each_part(const Times& in_use, const Call& call) const;
  void look(Query& query, std::size_t number, const Times& times, std::size_t offset);
  std::size_t lowest_beside(const Lists& lists, std::size_t offset, std::size_t bytes);

  std::size_t leaves_ = 1;   // a power of two
  std::vector<Node> nodes_;  // the root is 1, the children of n are 2n and 2n + 1, the leaf of a time is leaves_ + time
  Lists above_, all_;        // of lowest_free(): those from the root down to a node, and those of all nodes
  std::size_t visits_ = 0;
};

}  // namespace megalith
