// Tests that no rank waits for its GPU while it enqueues a step. Runs cover three dispatchers, expert rows on the host,
// sharded units, and tensor, context and pipeline parallelism, eager and in graphs. Waits are counted by an interposed
// CUDA (tests/support/host_waits/host_waits.h).
//   mpirun -np 2 mpi_host_waits     or 4, which then shard the experts
// Prints a line per layout. Exit code 1 if a rank waits or the wrong dispatcher runs; 77, for a skipped test, if ranks
// outnumber GPUs. A communicator with calls in graphs and eager calls may query completion once a call: that is no
// wait.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "apps/config/memory_options.h"
#include "apps/config/offload_options.h"
#include "apps/config/parallel_options.h"
#include "apps/flags/flags.h"
#include "apps/train/run_setup.h"
#include "parallel/comm/mpi/mpi_runtime.h"
#include "parallel/comm/nccl/nccl_communicator.h"
#include "parallel/comm/on_all_ranks.h"
#include "tests/distributed/rank_device.h"
#include "tests/distributed/way_of_rows.h"
#include "tests/support/host_waits/count_waits.h"
#include "tests/support/words.h"

namespace megalith::test {
namespace {

Words model() {
  return words(
      "--device cuda --bf16 --num-layers 4 --hidden-size 128 --seq-length 64 --num-attention-heads 2 --swiglu "
      "--disable-bias-linear --normalization RMSNorm --position-embedding-type rope --micro-batch-size 2 "
      "--global-batch-size 16 --train-iters 2 --lr 1e-3 --lr-warmup-iters 0 --eval-iters 0 --mock-data "
      "--tokenizer-type null --vocab-size 255");
}
Words experts(int ranks, const std::string& dispatcher) {
  return model() + words(fmt::format("--num-experts 8 --moe-ffn-hidden-size 64 --moe-grouped-gemm "
                                     "--moe-aux-loss-coeff 0.01 --moe-shared-expert-intermediate-size 64 "
                                     "--moe-expert-rank-capacity-factor 8 --expert-model-parallel-size {} "
                                     "--moe-token-dispatcher-type {}",
                                     ranks, dispatcher));
}

constexpr long kMaxQuestions = 1000;  // per step; a loop that waits by polling queries far more often

// Whether expert rows, if there are any, used the dispatcher that the flags select.
bool went_as_asked(const Options& options, const Rank& rank) {
  const MoeTokenDispatcher asked = options.parallel.moe_token_dispatcher_type;
  if (!rank.layers.dispatcher) return asked == MoeTokenDispatcher::kAuto;
  return went_by(asked, DeviceType::kCuda, rank.layers.dispatcher->communicator().stats());
}

// Whether all arrived expert rows were offloaded to the host, if the flags ask for it.
bool moved_as_asked(const Options& options, const Rank& rank) {
  return (rank.offload != nullptr && rank.offload->transfer.stats().bounded_out > 0) ==
         !options.offload.offload_modules.empty();
}

// Counts one step of a run with these flags on all ranks. Returns whether none waited, graphs were replayed, and rows
// were sent and moved as requested.
bool passes(const Words& flags, Communicator& gpus, Communicator& world) {
  const Options options = parse_flags(App::kTrain, flags).options;
  const StopRequest stop;
  Trainer trainer(prepare_run(options, world.rank(), world.size()), gpus, stop, &world);
  trainer.run();
  bool counting = false;
  const CountedStep step = count_waits(trainer, counting);
  const long waits = step.waits.of_runtime + step.waits.of_driver + step.waits.unseen;
  const bool as_asked = went_as_asked(options, trainer.rank()) && moved_as_asked(options, trainer.rank());
  const bool fails = waits != 0 || !as_asked || step.waits.questions > kMaxQuestions ||
                     (step.replays > 0) != (options.memory.cuda_graph_impl != CudaGraphImpl::kNone);
  if (fails)
    fmt::print(
        stderr,
        "rank {}: expected no wait, got {} of the runtime, {} of the driver, {} questions; first {}; {} replays; rows "
        "of experts went, or left for the host, {}\n",
        world.rank(), step.waits.of_runtime, step.waits.of_driver, step.waits.questions, step.waits.first, step.replays,
        as_asked ? "as asked" : "otherwise than asked");
  return !world.host_any(fails);
}

int run(MpiRuntime& mpi, Communicator& world) {
  const std::unique_ptr<Communicator> gpus = gpu_world(mpi);
  const Words graphs{"--cuda-graph-impl", "local", "--cuda-graph-modules", "layer"};
  const Words sharded{"--data-parallel-sharding-strategy", "optim_grads_params"};
  const Words around_rows{"--cuda-graph-impl", "local", "--cuda-graph-modules", "attn", "moe_router", "moe_preprocess"};
  const Words on_host = offload({"expert_fc1", "moe_act"});
  const Words tensor{"--tensor-model-parallel-size", "2", "--sequence-parallel"};
  const Words stages{"--pipeline-model-parallel-size", "2"};
  const auto by = [&](const char* dispatcher) { return experts(world.size(), dispatcher); };
  int status = 0;
  for (const auto& [name, flags] : std::vector<std::pair<const char*, Words>>{
           {"flex", by("flex")},
           {"flex, graphs", by("flex") + graphs},
           {"flex, rows on the host", by("flex") + on_host},
           {"flex, rows on the host, graphs", by("flex") + on_host + around_rows},
           {"alltoall", by("alltoall")},
           {"allgather, graphs", by("allgather") + graphs},
           {"experts and units sharded", by("flex") + sharded},
           {"units sharded, graphs", model() + sharded + graphs},
           {"tensor parallel with overlap", model() + tensor + Words{"--tp-comm-overlap"}},
           {"tensor parallel, graphs", model() + tensor + graphs},
           {"context parallel, graphs", model() + Words{"--context-parallel-size", "2"} + graphs},
           {"pipeline", model() + stages},
           {"pipeline, graphs", model() + stages + graphs}}) {
    const bool passed = passes(flags, *gpus, world);
    if (world.rank() == 0) fmt::print("{}: {}\n", name, passed ? "no wait" : "FAILED");
    if (!passed) status = 1;
  }
  return status;
}

}  // namespace
}  // namespace megalith::test

int main(int argc, char** argv) {
  using namespace megalith;
  using namespace megalith::test;
  MpiRuntime mpi(argc, argv, {.timeout = std::chrono::seconds(60)});
  if (!select_rank_device(mpi, DeviceType::kCuda)) return kSkipped;
  const std::unique_ptr<Communicator> world = mpi.world();
  try {
    return run(mpi, *world);
  } catch (const Error& error) {
    fmt::print(stderr, "rank {}: {}\n", mpi.rank(), error.what());
    mpi.abort(error.code());
  }
}
