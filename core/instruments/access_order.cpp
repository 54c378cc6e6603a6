#include "core/instruments/access_order.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>

#include "core/instruments/split_at.h"

namespace megalith {

std::vector<std::size_t> AccessOrder::add(const std::vector<AccessRange>& ranges) {
  const std::size_t op = ancestors_.size();
  std::vector<std::size_t> conflicts;
  if (ranges.empty()) {
    conflicts.resize(op);
    std::iota(conflicts.begin(), conflicts.end(), std::size_t{0});
    barrier_ = op;
    bytes_.clear();
  } else if (barrier_ != kNone) {
    conflicts.push_back(barrier_);
  }
  for (const AccessRange& range : ranges) follow(range, conflicts);
  for (const AccessRange& range : ranges) {
    if (!range.write) enter(range, op);
  }
  for (const AccessRange& range : ranges) {
    if (range.write) enter(range, op);
  }
  reduce(conflicts);
  return conflicts;
}

void AccessOrder::split(std::uintptr_t at) { split_at(bytes_, at); }

// Returns the first known bytes that reach into the range.
AccessOrder::Map::iterator AccessOrder::first_in(const AccessRange& range) {
  const auto begin = reinterpret_cast<std::uintptr_t>(range.begin);
  auto found = bytes_.upper_bound(begin);
  if (found != bytes_.begin() && std::prev(found)->second.end > begin) --found;
  return found;
}

void AccessOrder::follow(const AccessRange& range, std::vector<std::size_t>& conflicts) {
  const std::uintptr_t end = reinterpret_cast<std::uintptr_t>(range.begin) + range.bytes;
  for (auto at = first_in(range); at != bytes_.end() && at->first < end; ++at) {
    const Bytes& bytes = at->second;
    if (bytes.writer != kNone) conflicts.push_back(bytes.writer);
    if (range.write) conflicts.insert(conflicts.end(), bytes.readers.begin(), bytes.readers.end());
  }
}

void AccessOrder::enter(const AccessRange& range, std::size_t op) {
  const auto begin = reinterpret_cast<std::uintptr_t>(range.begin);
  const std::uintptr_t end = begin + range.bytes;
  split(begin);
  split(end);
  auto at = bytes_.lower_bound(begin);
  if (range.write) {
    while (at != bytes_.end() && at->first < end) at = bytes_.erase(at);
    bytes_.emplace_hint(at, begin, Bytes{.end = end, .writer = op, .readers = {}});
    return;
  }
  for (std::uintptr_t next = begin; next < end; ++at) {
    if (at == bytes_.end() || at->first > next) {  // bytes that no op touched
      const std::uintptr_t gap = at == bytes_.end() ? end : std::min(end, at->first);
      at = bytes_.emplace_hint(at, next, Bytes{.end = gap, .readers = {}});
    }
    at->second.readers.push_back(op);
    next = at->second.end;
  }
}

void AccessOrder::reduce(std::vector<std::size_t>& conflicts) {
  const std::size_t op = ancestors_.size();
  std::vector<std::uint64_t> all(op / 64 + 1, 0);
  std::sort(conflicts.begin(), conflicts.end(), std::greater<>());
  std::vector<std::size_t> kept;
  for (const std::size_t other : conflicts) {
    if (all[other / 64] >> (other % 64) & 1) continue;
    kept.push_back(other);
    all[other / 64] |= std::uint64_t{1} << (other % 64);
    for (std::size_t word = 0; word < ancestors_[other].size(); ++word) all[word] |= ancestors_[other][word];
  }
  ancestors_.push_back(std::move(all));
  conflicts = std::move(kept);
}

}  // namespace megalith
