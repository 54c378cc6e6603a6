// Times of expert layers in a run's steps, by events that hooks record ahead of the router and after the merge. Unlike
// a trace, they work in graphs too, and without two events around each op.
//   mpirun -np RANKS moe_layers FLAGS OF TRAIN...    graphs: --cuda-graph-modules attn moe; one ends at each hook
// Prints, by rank, the means of the last step over layers and microbatches, and the TFLOP/s of a rank's mean share of
// the rows. FLOPs are 18 x tokens x choices x hidden x FFN of a SwiGLU layer, 12 of another, without shared experts and
// routers. Every backward_weight must follow its backward_data.
#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "apps/config/dispatcher_choice.h"
#include "apps/config/memory_options.h"
#include "apps/config/training_options.h"
#include "apps/flags/flags.h"
#include "apps/train/run_setup.h"
#include "apps/train/trainer.h"
#include "core/device/cuda_device.h"
#include "core/model/config.h"
#include "parallel/comm/mpi/mpi_runtime.h"
#include "parallel/comm/nccl/nccl_communicator.h"

namespace megalith {
namespace {

enum Way { kForward, kBackward };

class LayerClock {
 public:
  void attach(Rank& rank) {
    Stream& compute = rank.streams.compute;
    for (int s = 0; s < rank.runner.num_segments(); ++s) {
      const std::int64_t layer = layer_of_experts(rank, s);
      if (layer < 0) continue;
      const auto record_at = [&](HookPoint point, Way way, bool begin) {
        rank.runner.hooks(s).add(point, [this, layer, way, begin, &compute](const HookContext& c) {
          Span& span = spans_[{layer, c.microbatch, way}];
          compute.record(begin ? span.begin : span.end);
        });
      };
      if (layer_of_experts(rank, s - 1) != layer) {
        record_at(HookPoint::kPreForward, kForward, true);
        record_at(HookPoint::kPostWeight, kBackward, false);
      }
      if (layer_of_experts(rank, s + 1) != layer) {
        record_at(HookPoint::kPostForward, kForward, false);
        record_at(HookPoint::kPreBackward, kBackward, true);
      }
    }
  }
  // Mean seconds over the last step, which has ended.
  double mean(Way of) const {
    double seconds = 0;
    int count = 0;
    for (const auto& [key, span] : spans_) {
      if (std::get<Way>(key) != of) continue;
      seconds += seconds_between(span.begin, span.end);
      ++count;
    }
    return count == 0 ? 0 : seconds / count;
  }

 private:
  struct Span {
    Event begin{"layer of experts begins", true}, end{"layer of experts ends", true};
  };
  // Layer of experts of the segment; -1: none.
  static std::int64_t layer_of_experts(const Rank& rank, int segment) {
    if (segment < 0 || segment >= rank.runner.num_segments()) return -1;
    const NamedSegment& named = rank.model.gpt.segments[static_cast<std::size_t>(segment)];
    const bool has_experts = named.module == SegmentModule::kMoeRouter || named.module == SegmentModule::kMoeDispatch ||
                             named.module == SegmentModule::kMoe;
    return has_experts ? named.layer : -1;
  }

  std::map<std::tuple<std::int64_t, int, Way>, Span> spans_;  // key: layer, microbatch, kind
};

int run(MpiRuntime& mpi, Communicator& world, const Options& options) {
  const bool on_gpus = options.device == DeviceType::kCuda;
  LayerClock clock;
  RunSetup setup = load_run(options, world.rank(), world.size());
  find_machine(setup, world);
  plan_run(setup, world.rank());
  setup.customize = [&](Rank& rank) { clock.attach(rank); };
  const std::unique_ptr<Communicator> gpus = on_gpus ? gpu_world(mpi) : nullptr;
  const StopRequest stop;
  Trainer trainer(std::move(setup), gpus ? *gpus : world, stop, &world);
  const ExitCode code = trainer.run();
  trainer.rank().streams.compute.synchronize();
  const RunConfig& config = trainer.rank().config;
  const ModelConfig& model = trainer.rank().options.model;
  const double tokens = static_cast<double>(config.rank_tokens() / config.mesh.tp);
  const double flops = (model.swiglu ? 18.0 : 12.0) * tokens * static_cast<double>(model.moe.router_topk) *
                       static_cast<double>(model.hidden_size) * static_cast<double>(model.moe.ffn_hidden_size);
  struct Times {
    double forward, backward;
  };
  int rank = 0;
  for (const Times& of : world.host_gather(Times{clock.mean(kForward), clock.mean(kBackward)})) {
    if (world.rank() == 0 && of.forward > 0)
      fmt::print("rank {}: forward {:.0f} us, backward {:.0f} us, {:.0f} TFLOP/s\n", rank, 1e6 * of.forward,
                 1e6 * of.backward, flops / (of.forward + of.backward) * 1e-12);
    ++rank;
  }
  return static_cast<int>(code);
}

}  // namespace
}  // namespace megalith

int main(int argc, char** argv) {
  using namespace megalith;
  try {
    Options options = parse_flags(App::kTrain, std::vector<std::string>(argv + 1, argv + argc)).options;
    options.train.eval_iters = 0;  // the last step is the last that hooks see
    if (options.deterministic_mode) set_deterministic_environment();
    if (options.memory.cuda_graph_impl != CudaGraphImpl::kNone) set_graphs_environment();
    MpiRuntime mpi(argc, argv, {});
    const std::unique_ptr<Communicator> world = mpi.world();
    try {
      if (options.device == DeviceType::kCuda) select_cuda_device(mpi.gpu());
      return run(mpi, *world, options);
    } catch (const Error& error) {
      fmt::print(stderr, "rank {}: {}\n", mpi.rank(), error.what());
      mpi.abort(error.code());
    }
  } catch (const Error& error) {
    fmt::print(stderr, "moe_layers: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
