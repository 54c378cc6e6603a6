// What train prints before anything is allocated: the version, the ranks, their layout, the model, its tokens and the
// memory that they will take.
#pragma once

#include <string>
#include <vector>

#include "apps/train/run_setup.h"

namespace megalith {

// What a rank says of itself.
struct RankFacts {
  std::string host;
  std::string device;
  std::size_t bytes = 0;     // forecast
  std::string owners;        // of them
  std::string offload = {};  // what moves to the host
  StepGraphs graphs = {};
};

// The name of this process's GPU, or CPU.
std::string device_name(const Options& options);

// The lines of a run; `options` are complete.
std::string banner_text(const Options& options, const RunConfig& config, const std::vector<RankFacts>& ranks);

// "parameters 0.25, gradients 0.50 MiB", the largest first and without those that are too small to show.
std::string said_owners(const MemoryUse& use);

// Collective over all ranks; rank 0 prints to standard output.
void print_banner(const RunSetup& setup, Communicator& world);

}  // namespace megalith
