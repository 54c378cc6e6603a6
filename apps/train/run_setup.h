// What each rank prepares before the first step; its errors are mostly the user's.
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
  std::vector<SmallFile> files = {};  // rank 0's, for checkpoints: those of the tokenizer
  FoundCheckpoint found = {};         // where it was looked for already
  RunData data = {};                  // where it is known from where on
  StepPlans plans = {};
  std::function<void(Rank&)> customize = nullptr;                              // adds hooks, before anything runs
  std::function<std::size_t()> host_bytes = [] { return available_bytes(); };  // what this host can give; 0: unknown
};
// All but plans. `options` is complete except for the vocabulary size, which the tokenizer gives.
RunSetup load_run(const Options& options, int rank, int world, FoundCheckpoint found = {});
// Sets options.machine: what each rank may take of its host, and whether GPUs among which rows of experts may go by
// flex all read each other's memory; the same on all ranks. Collective.
void find_machine(RunSetup& setup, Communicator& world);
void plan_run(RunSetup& setup, int rank);
// load_run and plan_run, for one rank on its own.
RunSetup prepare_run(const Options& options, int rank, int world, FoundCheckpoint found = {});

// Shards them on all ranks where that is open, some rank's device has no room for whole ones (on the CPU: its share of
// what the host can give), and the rank with the most then needs less. Plans again. Collective.
void decide_on_ends(RunSetup& setup, Communicator& world, std::size_t host_bytes = available_bytes());

}  // namespace megalith
