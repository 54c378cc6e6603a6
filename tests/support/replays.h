// Graphs of ops whose tables change between replays.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "core/device/graph.h"
#include "tests/support/op_test.h"

namespace megalith::test {

// Expects that a graph captured with some numbers gives the results of others after these replace the first, as in
// eager calls. `results_of(given, act)` stores `given`, has `act` run the ops of `enqueue`, and reads the results.
// Returns those of `second`.
template <class Given, class ResultsOf>
std::vector<Values> expect_replay_follows(Stream& stream, const Given& first, const Given& second,
                                          const std::function<void()>& enqueue, const ResultsOf& results_of) {
  const std::vector<Values> want_first = results_of(first, enqueue), want_second = results_of(second, enqueue);
  EXPECT_NE(want_first, want_second);
  Graph graph("test");
  graph.begin_capture(stream);
  enqueue();
  graph.end_capture();
  const std::function<void()> replay = [&] { graph.replay(stream); };
  EXPECT_EQ(results_of(first, replay), want_first);
  EXPECT_EQ(results_of(second, replay), want_second);
  return want_second;
}

}  // namespace megalith::test
