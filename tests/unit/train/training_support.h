// Complete training runs of tiny models on thread ranks, in one process.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "apps/flags/flags.h"
#include "apps/train/trainer.h"
#include "tests/support/test_folder.h"
#include "tests/support/words.h"

namespace megalith::test {

// Unsharded tensors, gathered from the slices of all ranks; NaN for elements that no rank held.
using Tensors = std::map<std::string, std::vector<float>>;
// Puts this rank's slices of weights or of reduced main gradients into `whole`; false if another rank had put in other
// bits.
bool put_slices(Rank& rank, Tensor Parameter::*kind, Tensors& whole);

// Weights, main parameters and both moments, as "kind/logical name", widened to fp32.
using ModelState = Tensors;
bool put_state(Rank& rank, Tensors& whole);  // result as of put_slices
ModelState read_state(Rank& rank);           // state of this rank

inline const Words kDropout = {"--hidden-dropout", "0.1"};
inline const Words kEvaluations = {"--eval-interval", "2", "--eval-iters", "1"};
inline const Words kGraphs = {"--cuda-graph-impl", "local"};
inline const Words kGraphsOfAttentionAndMlp = kGraphs + Words{"--cuda-graph-modules", "attn", "mlp"};
inline Words stages(int count) { return {"--pipeline-model-parallel-size", std::to_string(count)}; }
inline Words tensor_ranks(int count) { return {"--tensor-model-parallel-size", std::to_string(count)}; }
inline Words schedule(const std::string& name) {  // interleaved: with two chunks
  const Words flags{"--pipeline-schedule", name};
  return name == "interleaved" ? flags + Words{"--num-virtual-stages-per-pipeline-rank", "2"} : flags;
}
inline double number_of_hex(const std::string& hex) { return std::strtod(hex.c_str(), nullptr); }
inline Words strategy(const std::string& name) { return {"--data-parallel-sharding-strategy", name}; }

// Evidence that the features selected by flags really ran.
struct RankActivity {
  std::int64_t tensor_calls = 0;     // collectives of its tensor-parallel group
  std::int64_t context_calls = 0;    // messages of its context-parallel group
  std::int64_t buckets_reduced = 0;  // over more than one replica
  std::int64_t ranges_scattered = 0, buckets_gathered = 0;
  std::int64_t units_gathered = 0, units_reduced = 0;  // sharded units, warm-up included
  PipelineTransfer::Stats transfer;
  ActivationTransfer::Stats offload;       // warm-up included
  std::int64_t replays = 0;                // graph replays
  std::int64_t slots = 0, slot_bytes = 0;  // on the host between forward and backward, per microbatch
  std::size_t arena_planned = 0, host_planned = 0;
};

struct RunResult {
  std::vector<std::string> losses;      // C99 %a, by step
  std::vector<std::string> grad_norms;  // C99 %a, by step
  std::vector<double> loss_values;
  std::vector<std::string> validation_losses;      // in steps with an evaluation
  std::vector<int> regrows;                        // regrows of the capacity for expert rows so far, by step
  std::vector<double> balancing_losses, z_losses;  // losses of routers; 0 without routers
  std::vector<std::string> squares;                // last step's gradients, in logical name order: fp64 as C99 %a
  Tensors weights;                                 // key: logical name; gathered from all ranks' slices
  Tensors gradients;                               // in the last step, reduced
  std::vector<RankActivity> ranks;
  bool copies_agree = true;       // replicated weights, gradients and squares have equal bits
  std::int64_t tensor_calls = 0;  // collectives of rank 0's tensor-parallel group
  // Statistics of the pipeline's stages, for the first replica.
  std::map<int, PipelineTransfer::Stats> transfers;
  std::map<int, std::vector<float>> word_tables;  // key: stage; for stages with the table or a copy
  ModelState state;                               // rank 0, at the end
  Tensors whole_state;                            // over all ranks
  std::map<int, CategoryBytes> memory;            // persistent, by rank
  std::int64_t hazards = 0;                       // over all ranks
  std::int64_t event_waits = 0;                   // on rank 0
  // Calls of rank 0's data-parallel group.
  std::int64_t buckets_reduced = 0, ranges_scattered = 0, buckets_gathered = 0, ranges_gathered = 0;
  std::int64_t data_calls = 0;
  std::int64_t system_allocations_before = 0, system_allocations_after = 0;  // rank 0: after step 2, at the end
  bool memory_as_planned = true;                                             // on all ranks
  std::size_t arena_touched = 0, arena_planned = 0, pool_peak = 0, pool_reserved = 0, planned_total = 0;
  std::int64_t skipped_steps = 0;
  ExitCode code = ExitCode::kOk;
};

struct RunRequest {
  std::vector<std::string> flags;  // over tiny_flags()
  int ranks = 1;
  std::string cache = {};  // $MEGALITH_CACHE of the run; empty: a folder that this process's runs share
  std::function<void(Rank&)> customize = nullptr;             // RunSetup::customize
  std::function<void(Trainer&, int rank)> prepare = nullptr;  // called ahead of run()
  std::function<void(Trainer&, int rank)> finish = nullptr;   // after it
  std::function<std::size_t()> host_bytes = nullptr;          // RunSetup::host_bytes
};

// small_run() on mock data, on the CPU.
Words tiny_flags();
// A Llama with norms of q and k, of two query groups.
Words llama_flags();
// Every mode of --recompute-granularity.
std::vector<Words> recompute_modes();

// The same losses, gradient norms, evaluations, squares and weights, bit for bit.
void expect_same_run(const RunResult& a, const RunResult& b);
// Also gradients, and that the run was in order.
void expect_same_state(const RunResult& run, const RunResult& want);
// Each slot of each rank moved `times` times out and back. Returns the number of slots.
std::int64_t expect_moved(const RunResult& run, std::int64_t times);
// Each step's loss, or its gradients' norm, but for this share of it.
void expect_losses_near(const RunResult& got, const RunResult& want, double tolerance = 1e-5);
void expect_norms_near(const RunResult& got, const RunResult& want, double tolerance);
// Norm of the difference; with one vector, its norm.
double norm_of_difference(const std::vector<float>& a, const std::vector<float>& b);
double norm(const std::vector<float>& a);
// Each tensor's gradients are equal within this share of their norm. Tensors whose gradient is only rounding, by suffix
// of the name, are equal within 1e-8.
void expect_gradients_near(const RunResult& got, const RunResult& want, double tolerance,
                           const std::string& no_gradient = {});
bool same_bits(const Tensors& a, const Tensors& b);  // NaN is NaN

RunResult train(const RunRequest& request);

// Runs with each `stride`-th event wait left out, except the last ones, which serve the gathers of a next step.
struct SuppressedWaits {
  std::int64_t all = 0;            // in the run with all of them, which has no hazard
  std::vector<std::int64_t> idle;  // waits whose absence causes no hazard
  int refused = 0;                 // runs that failed
};
SuppressedWaits suppress_each_wait(const Words& flags, int ranks, int stride = 1, std::int64_t after = 0);
// Reads the values of --metrics-jsonl, step by step.
void read_metrics(const std::string& path, RunResult& result);

// There are at least this many waits, and each is needed.
void expect_each_wait_needed(std::int64_t at_least, const Words& flags, int ranks, int stride = 1,
                             std::int64_t after = 0);

// A verb after which a hook throws.
struct BrokenAt {
  HookPoint point;
  int segment = 0, microbatch = 0;
};
// Each rank runs two single steps ahead of its run. Between them one step breaks off there, by an exception that its
// caller catches; it changes no bits of the second.
void expect_nothing_left_of_a_broken_step(RunRequest request, const BrokenAt& at);

}  // namespace megalith::test
