// What an op of the CUDA backend tells the graph that captures it, beyond what it announced; one object a stream
// (cuda_stream_state.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>

namespace megalith {

struct CaptureNotes {
  bool wanted = false;  // a graph captures the stream
  // Announced workspaces, of which the op touches only the first so many bytes.
  std::map<const void*, std::size_t> touched;
  // The op waits for other ranks, which have to enqueue what they wait for in one order: the graph stays a chain.
  bool meets_ranks = false;

  // An op may use one workspace several times.
  void touches(const void* workspace, std::size_t bytes) {
    std::size_t& most = touched[workspace];
    most = std::max(most, bytes);
  }
};

}  // namespace megalith
