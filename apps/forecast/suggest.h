// The layouts of a model over a number of ranks that a machine steps through fastest: every tensor-, pipeline- and
// expert-parallel size, schedule, number of chunks, micro batch, sharding strategy and amount of recomputation is
// forecast, unless it cannot be among the best or does not fit. Gradients and weights are sharded only where memory is
// short, over all replicas or those of a host. None with context parallelism; tensor and expert parallelism stay within
// a host, experts whole.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "apps/config/options.h"
#include "apps/forecast/forecast.h"
#include "parallel/cost/rates.h"

namespace megalith {

struct Suggestion {
  std::vector<std::string> flags;  // to add to those that were given
  StepForecast step;
};

struct Suggestions {
  std::vector<Suggestion> best;        // the fastest first
  std::map<std::string, int> dropped;  // how many layouts for which reason
  int tried = 0;
};

struct SuggestSpec {
  const Rates* rates = nullptr;
  std::size_t most_memory = 0;  // bytes of a rank
  std::size_t count = 10;
};
// An error with exit code 2 where a flag sets some of the layout itself.
void refuse_layout_flags(const Options& options);

// `options` is complete, as for one rank; what it says of the layout is left at its defaults.
Suggestions suggest_layouts(const Options& options, int world, const SuggestSpec& spec);

}  // namespace megalith
