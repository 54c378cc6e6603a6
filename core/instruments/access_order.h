// Which earlier ops of a list an op has to follow, by what they announce: one that wrote what it reads or writes, or
// read what it writes. Ops that no path of these joins may run side by side, and each computes the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "core/instruments/access.h"

namespace megalith {

class AccessOrder {
 public:
  // Takes the next op; its predecessors, latest first, without those that another one of them follows already. One
  // that announces nothing follows all before it and precedes all behind it.
  std::vector<std::size_t> add(const std::vector<AccessRange>& ranges);

 private:
  // What is known of the bytes [key, end): the last op that wrote them and those that read them since.
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
  // Sorts, and takes out what others of the list follow.
  void reduce(std::vector<std::size_t>& conflicts);

  Map bytes_;
  std::vector<std::vector<std::uint64_t>> ancestors_;  // of each op, a bit each
  std::size_t barrier_ = kNone;                        // the latest op that announced nothing
};

}  // namespace megalith
