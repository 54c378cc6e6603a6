// How transfers of several streams share a link.
#pragma once

#include <cstddef>
#include <vector>

namespace megalith {

// A link over which several lanes send at the same time: who was first enqueued has what it takes alone, others what is
// left.
class SharedLink {
 public:
  explicit SharedLink(double left) : left_(left) {}  // of one's rate

  // Of a transfer that begins at `begin` and takes `seconds` alone. `slowed`: the share of the seconds that products
  // beside it cost.
  double end_of(double begin, double seconds, std::size_t lane, double slowed);

  // Nothing is computed from `from` to `to`: a lane's transfers have the link's whole rate then. How much sooner the
  // last one of the lane ends.
  double catch_up(std::size_t lane, double from, double to);

 private:
  struct Span {
    double begin = 0, end = 0;
    std::size_t lane = 0;
    double slowed = 0;
  };

  double left_;
  std::vector<Span> spans_;  // by begin
};

}  // namespace megalith
