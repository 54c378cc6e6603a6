// Order of the ops of a list by their accesses: an op follows each earlier op that wrote its inputs or outputs, or read
// its outputs. Ops without a path between them may run concurrently; the bits stay equal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "core/instruments/access.h"

namespace megalith {

class AccessOrder {
 public:
  // Adds the next op. Returns its predecessors, latest first, without those that another predecessor follows.
  // An op without ranges follows all earlier ops and precedes all later ones.
  std::vector<std::size_t> add(const std::vector<AccessRange>& ranges);

 private:
  // State of the bytes [key, end): the op that wrote them last and the ops that read them since.
  struct Bytes {
    std::uintptr_t end = 0;
    std::size_t writer = kNone;
    std::vector<std::size_t> readers;
  };
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  using Map = std::map<std::uintptr_t, Bytes>;

  void split(std::uintptr_t at);
  Map::iterator first_in(const AccessRange& range);
  void follow(const AccessRange& range, std::vector<std::size_t>& conflicts);
  void enter(const AccessRange& range, std::size_t op);
  // Sorts the list and removes ops that another op of the list follows.
  void reduce(std::vector<std::size_t>& conflicts);

  Map bytes_;
  std::vector<std::vector<std::uint64_t>> ancestors_;  // of each op, one bit per op
  std::size_t barrier_ = kNone;                        // the latest op without ranges
};

}  // namespace megalith
