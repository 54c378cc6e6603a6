// Preparation of each rank ahead of the first step; most of its errors are the user's.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "apps/checkpoint/checkpoint_flags.h"
#include "apps/checkpoint/run_tokenizer.h"
#include "apps/checkpoint/training_checkpoint.h"
#include "apps/config/options.h"
#include "apps/config/run_config.h"
#include "apps/run/run_data.h"
#include "apps/run/step_plan.h"
#include "core/base/machine/host_memory.h"
#include "core/tokenizer/tokenizer.h"

namespace megalith {

struct RunSetup {
  Options options;  // complete
  RunConfig config;
  Tokenizer tokenizer;
  std::vector<SmallFile> files = {};  // of rank 0, for checkpoints: the tokenizer's files
  FoundCheckpoint found = {};         // if it was already found
  RunData data = {};                  // if its start is known
  StepPlans plans = {};
  std::function<void(Rank&)> customize = nullptr;                              // adds hooks ahead of the first step
  std::function<std::size_t()> host_bytes = [] { return available_bytes(); };  // this host's free bytes; 0: unknown
};
// Setup without plans. `options` is complete except for the vocabulary size, which the tokenizer gives.
RunSetup load_run(const Options& options, int rank, int world, FoundCheckpoint found = {});
// Sets options.machine, equal on all ranks: host memory per rank, and if GPUs that exchange rows of experts can read
// each other's memory. Collective.
void find_machine(RunSetup& setup, Communicator& world);
void plan_run(RunSetup& setup, int rank);
// Calls load_run and plan_run for one rank.
RunSetup prepare_run(const Options& options, int rank, int world, FoundCheckpoint found = {});

// Shards open embedding and head if some rank's device has too little memory and the largest rank then needs less; on
// the CPU, too little of the host's memory. Plans again. Collective.
void decide_on_ends(RunSetup& setup, Communicator& world, std::size_t host_bytes = available_bytes());

}  // namespace megalith
