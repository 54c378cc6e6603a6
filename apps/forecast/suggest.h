// Fastest layouts of a model over a number of ranks. The search forecasts every tensor-, pipeline- and expert-parallel
// size, schedule, number of chunks, micro batch size, sharding strategy and recomputation. It excludes layouts that are
// too slow or do not fit. Gradients and weights are sharded only if memory is short, over all replicas or those of a
// host. There is no context parallelism; tensor and expert parallelism stay within a host, and experts are not split.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "apps/config/options.h"
#include "apps/forecast/forecast.h"
#include "parallel/cost/rates.h"

namespace megalith {

struct Suggestion {
  std::vector<std::string> flags;  // flags to add to the given flags
  StepForecast step;
  double exposed_seconds = 0;  // communication that the compute stream of the busiest stage waits for
};

struct Suggestions {
  std::vector<Suggestion> best;        // fastest first
  std::map<std::string, int> dropped;  // number of layouts by reason
  int tried = 0;
};

struct SuggestSpec {
  const Rates* rates = nullptr;
  std::size_t max_memory = 0;  // bytes per rank
  std::size_t count = 5;
  // Called by several threads, one at a time, with the number of finished layouts.
  std::function<void(const char* phase, std::size_t done, std::size_t all)> progress = {};
};
// Fails with exit code 2 if a flag sets a part of the layout.
void refuse_layout_flags(const Options& options);

// Suggestions for `options`, complete for one rank; their layout flags have default values.
Suggestions suggest_layouts(const Options& options, int world, const SuggestSpec& spec);

}  // namespace megalith
