// Banner of train ahead of any allocation: version, ranks, layout, model, tokens and forecast memory.
#pragma once

#include <string>
#include <vector>

#include "apps/train/run_setup.h"

namespace megalith {

// Facts that a rank reports about itself.
struct RankFacts {
  std::string host;
  std::string device;
  std::size_t bytes = 0;     // forecast
  std::string owners;        // owners of these bytes
  std::string offload = {};  // offloaded activations
  StepGraphs graphs = {};
};

// Name of this process's GPU, or CPU.
std::string device_name(const Options& options);

// Lines of a run; `options` are complete. `notices`: those of the command line.
std::string banner_text(const Options& options, const RunConfig& config, const std::vector<RankFacts>& ranks,
                        const std::vector<std::string>& notices = {});

// Text such as "parameters 0.25, gradients 0.50 MiB", the largest first, without amounts that are too small to show.
std::string describe_owners(const MemoryUse& use);

// Prints the banner to standard output on rank 0. Collective over all ranks.
void print_banner(const RunSetup& setup, Communicator& world, const std::vector<std::string>& notices);

}  // namespace megalith
