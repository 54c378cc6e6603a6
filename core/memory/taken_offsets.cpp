#include "core/memory/taken_offsets.h"

#include <algorithm>
#include <bit>

namespace megalith {

bool ByteRanges::add(const Range& range) {
  const auto first = std::ranges::lower_bound(ranges_, range.begin, {}, &Range::end);  // touches `range` or lies above
  const auto end = std::ranges::upper_bound(first, ranges_.end(), range.end, {}, &Range::begin);
  if (first == end) {
    ranges_.insert(first, range);
    return true;
  }
  if (first->begin <= range.begin && range.end <= first->end) return false;
  first->begin = std::min(first->begin, range.begin);
  first->end = std::max((end - 1)->end, range.end);
  ranges_.erase(first + 1, end);
  return true;
}

std::size_t ByteRanges::lowest_free(std::size_t offset, std::size_t bytes, std::size_t& visits) const {
  ++visits;
  for (auto next = std::ranges::upper_bound(ranges_, offset, {}, &Range::end);
       next != ranges_.end() && next->begin < offset + bytes; ++next, ++visits)
    offset = next->end;
  return offset;
}

std::size_t TakenOffsets::Bound::of(std::size_t wanted) {
  if (wanted < bytes || bytes == 0) *this = {.bytes = wanted, .offset = 0};
  return offset;
}

TakenOffsets::TakenOffsets(std::size_t times) : leaves_(std::bit_ceil(times)), nodes_(2 * leaves_) {}

void TakenOffsets::clear() {
  for (Node& node : nodes_) {
    node.whole.clear();
    node.any.clear();
    node.whole_bound = node.any_bound = {};
  }
}

// Calls `call` with the fewest nodes that together cover these times.
template <class Call>
void TakenOffsets::for_each_part(const Times& in_use, const Call& call) const {
  std::size_t first = leaves_ + in_use.first, end = leaves_ + in_use.last + 1;
  for (; first < end; first /= 2, end /= 2) {
    if (first % 2 == 1) call(first++);
    if (end % 2 == 1) call(--end);
  }
}

// Searches from `offset` on.
std::size_t TakenOffsets::lowest_in_all(const Lists& lists, std::size_t offset, std::size_t bytes) {
  for (std::size_t n = 0, fitting = 0; fitting < lists.size(); n = n + 1 == lists.size() ? 0 : n + 1) {
    const std::size_t free = lists[n]->lowest_free(offset, bytes, visits_);
    fitting = free == offset ? fitting + 1 : 1;
    offset = free;
  }
  return offset;
}

// Raises the query's offset at node `number` and its descendants; the nodes above allow `offset`. Each node searches
// separately: another node may fill its list's gaps, and bounds skip most steps from list to list.
void TakenOffsets::look(Query& query, std::size_t number, const Times& times, std::size_t offset) {
  Node& node = nodes_[number];
  const bool is_inside = query.in_use.first <= times.first && times.last <= query.in_use.last;
  const ByteRanges& ranges = is_inside ? node.any : node.whole;
  if (!ranges.empty()) {
    all_.push_back(&ranges);
    above_.push_back(&ranges);
    Bound& bound = is_inside ? node.any_bound : node.whole_bound;
    const std::size_t lowest = ranges.lowest_free(std::max(offset, bound.of(query.bytes)), query.bytes, visits_);
    if (lowest != offset) offset = lowest_in_all(above_, lowest, query.bytes);
    if (bound.bytes == query.bytes) bound.offset = offset;
  }
  if (is_inside) {
    query.lowest = std::max(query.lowest, offset);
  } else {
    const std::uint32_t middle = times.first + (times.last - times.first) / 2;
    if (query.in_use.first <= middle) look(query, 2 * number, {.first = times.first, .last = middle}, offset);
    if (query.in_use.last > middle) look(query, 2 * number + 1, {.first = middle + 1, .last = times.last}, offset);
  }
  if (!ranges.empty()) above_.pop_back();
}

std::size_t TakenOffsets::lowest_free(std::span<const Times> in_use, std::size_t bytes) {
  all_.clear();
  std::size_t lowest = 0;
  for (const Times& times : in_use) {
    Query query{.in_use = times, .bytes = bytes, .lowest = lowest};
    look(query, 1, {.first = 0, .last = static_cast<std::uint32_t>(leaves_ - 1)}, 0);
    lowest = query.lowest;
  }
  return lowest_in_all(all_, lowest, bytes);
}

void TakenOffsets::take(std::span<const Times> in_use, const ByteRanges::Range& range) {
  for (const Times& times : in_use) {
    for_each_part(times, [&](std::size_t node) {
      nodes_[node].whole.add(range);
      ++visits_;
      for (; node > 0 && nodes_[node].any.add(range); node /= 2) ++visits_;
    });
  }
}

}  // namespace megalith
