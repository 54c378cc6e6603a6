// Offsets for buffers with known lifetimes, in as little memory as the search finds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace megalith {

// Begins after lane 0's entry begin - 1 and ends before its entry end + 1.
struct Lifetime {
  std::int64_t begin = std::numeric_limits<std::int64_t>::max();
  std::int64_t end = -1;
};

struct LayoutBuffer {
  std::size_t bytes = 0;
  std::vector<Lifetime> lives;  // ascending and disjoint; none: conflicts with no buffer
  std::size_t offset = 0;
};

// Returns whether a layout of `bytes` loses at most a 512th of `live_bytes` or 2 MiB, a page of a GPU.
bool is_tight(std::size_t bytes, std::size_t live_bytes);

// Assigns offsets so that buffers alive together do not overlap. Returns the end of the highest one: at least
// `live_bytes`, the most bytes alive at once. `searches` tries more layouts, for about 0.2 s, if the first two are not
// tight. The same buffers get the same offsets on every machine.
std::size_t lay_out(std::vector<LayoutBuffer>& buffers, std::size_t live_bytes, bool searches);

}  // namespace megalith
