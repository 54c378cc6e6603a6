#include "apps/train/start.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "apps/checkpoint/checkpoint_flags.h"
#include "apps/config/checkpoint_options.h"
#include "apps/config/logging_options.h"
#include "apps/config/memory_options.h"
#include "apps/config/parallel_options.h"
#include "apps/config/training_options.h"
#include "apps/flags/flags.h"
#include "apps/run/own_model.h"
#include "apps/summary/format_actions.h"
#include "apps/summary/planned_graphs.h"
#include "apps/train/banner.h"
#include "apps/train/trainer.h"
#include "core/base/digest.h"
#include "core/base/files/fault.h"
#include "core/base/files/file.h"
#include "core/base/files/standard_files.h"
#include "core/base/machine/launch.h"
#include "core/base/machine/program.h"
#include "core/device/cuda_device.h"
#include "parallel/checkpoint/save_lock.h"
#include "parallel/comm/nccl/nccl_communicator.h"
#include "parallel/comm/on_all_ranks.h"
#include "parallel/watch/start_watch.h"

namespace megalith {
namespace {

// Flags of this rank, or the error of reading them; all ranks report it together.
struct Flags {
  std::unique_ptr<FlagParser> parser;
  Parsed read;
  std::optional<Error> error;

  bool prints() const { return !read.print.empty(); }
};

Flags read_flags(const std::vector<std::string>& arguments, int rank) {
  Flags flags{.parser = std::make_unique<FlagParser>(App::kTrain, own_options()), .read = {}, .error = {}};
  try {
    flags.read = flags.parser->read(arguments, rank);
  } catch (const Error& error) {
    flags.error = error;
  }
  return flags;
}

std::chrono::milliseconds timeout_of(const Flags& flags, const std::vector<std::string>& arguments) {
  const ParallelOptions& parallel = flags.read.options.parallel;
  if (flags.error || flags.prints()) return megalith::timeout_of(arguments);
  return megalith::timeout_of(parallel.comm_timeout, static_cast<double>(parallel.distributed_timeout_minutes));
}

// Rejects processes that MPI does not connect: all would be rank 0 and write the same files. Any sign of a launch is
// enough, as one rank instead of many wastes hours.
void check_launch(int world) {
  const Launch launch = launch_of(LaunchSigns::kAny);
  if (world > 1 || launch.ranks == 1) return;
  refuse_usage(launch.sign, {.expected = fmt::format("a world of {} ranks in MPI", launch.ranks),
                             .got = "a world of 1 rank",
                             .remedy = fmt::format("start the ranks by mpirun -np {} of the Open MPI that train was "
                                                   "built with, or by srun --mpi=pmix; use mpirun -np 1 for one rank",
                                                   launch.ranks)});
}

// Folder of --save while a run writes there. Fails now instead of at the first save.
class RunFolder {
 public:
  // Takes the folder at the first call.
  void take(const Options& options, int rank) {
    const std::string& save = options.checkpoint.save;
    if (std::exchange(taken_, true) || options.logging.print_actions) return;
    const bool writes = !options.train.skip_train && rank == 0;
    if (writes) StopFile(options.train.stop_file).require_free();
    if (save.empty()) return;
    check(save);
    if (writes) lock_.emplace(save);
  }
  void hand_to(Trainer& trainer) {
    if (lock_) trainer.checkpoints().hold_folder([this](const Directory& folder) { lock_->hold(folder); });
  }

 private:
  static void check(const std::string& folder) {
    const FaultScope scope("save.root");
    try {
      Directory::create(folder).check_writable();
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("--save: {}", error.what()));
    }
  }

  bool taken_ = false;
  std::optional<SaveLock> lock_;  // on rank 0
};

// Phases of the start. The result of a phase is the input of the next; an error of one rank ends all ranks.

// Fails on all ranks if a flag has another value on some rank, since ranks would then disagree about their collectives.
void check_same_flags(const FlagParser& parser, Communicator& world) {
  const std::string mine = parser.values();
  std::uint64_t digest = kEmptyDigest;
  fold(digest, mine);
  const std::vector<std::uint64_t> digests = world.host_gather(digest);
  const auto other = std::ranges::find_if(digests, [&](std::uint64_t each) { return each != digests[0]; });
  if (other == digests.end()) return;
  const auto rank = static_cast<int>(other - digests.begin());
  std::istringstream first(world.host_broadcast(mine, 0)), second(world.host_broadcast(mine, rank));
  std::string here, there;
  while (here == there && std::getline(first, here)) std::getline(second, there);
  throw EveryRankFailed({.rank = rank,
                         .code = ExitCode::kUsage,
                         .message = fmt::format("{}: expected the value of rank 0 on all ranks, got {} on rank {}; "
                                                "start all ranks with the same flags",
                                                here, there, rank)});
}

// Complete flags, and with --use-checkpoint-args the checkpoint that gave some of them. Such a run takes its folder
// ahead of the search, since a run that ends meanwhile may save a newer checkpoint.
Parsed complete_flags(const Flags& flags, Communicator& world, RunFolder& folder, FoundCheckpoint& found) {
  const bool asks_checkpoint = !flags.prints() && flags.read.options.checkpoint.use_checkpoint_args;
  on_all_ranks(world, [&] {
    if (flags.error) throw *flags.error;
    if (!flags.prints()) check_launch(world.size());
    if (asks_checkpoint) folder.take(flags.read.options, world.rank());
  });
  check_same_flags(*flags.parser, world);
  return flags.prints() ? flags.read : finish_flags(*flags.parser, flags.read, world, found);
}

// Configuration, tokenizer, data and checkpoint of the run.
RunSetup load(const Options& options, Communicator& world, FoundCheckpoint found) {
  find_start(options, world, found);
  std::optional<RunSetup> setup;
  on_all_ranks(world, [&] { setup.emplace(load_run(options, world.rank(), world.size(), std::move(found))); });
  return std::move(*setup);
}

// Plans a step, and plans again if memory decides the sharding of embedding and head.
void plan(RunSetup& setup, Communicator& world) {
  on_all_ranks(world, [&] { plan_run(setup, world.rank()); });
  const std::vector<StepGraphs> graphs = world.host_gather(setup.plans.graphs);
  on_all_ranks(world, [&] { check_captured_modules(setup.options, graphs); });
  decide_on_ends(setup, world);
}

// Starts the watch: signals save from here on, and a rank that hangs is reported.
void watch(MpiRuntime& mpi, const RunSetup& setup, StopRequest& stop, bool reports, std::chrono::milliseconds timeout) {
  for (const int signal : kStopSignals) stop_on_signal(signal, stop, reports);
  const auto place_of = [sizes = setup.config.mesh](int rank) { return rank_place(sizes, rank); };
  const bool splits_experts = setup.config.mesh.ep * setup.config.mesh.etp > 1;
  mpi.watch({.timeout = timeout,
             .dump_folder = setup.options.parallel.comm_dump,
             .place_of = splits_experts ? place_of : std::function<std::string(int)>()});
}

ExitCode train(MpiRuntime& mpi, Communicator& world, const Flags& flags, StopRequest& stop) {
  const auto print_text = [&world](const std::string& text) {
    if (world.rank() == 0) fmt::print("{}", text);
    return ExitCode::kOk;
  };
  RunFolder folder;
  FoundCheckpoint found;
  const Parsed parsed = complete_flags(flags, world, folder, found);
  if (!parsed.print.empty()) return print_text(parsed.print);
  const bool on_gpus = parsed.options.device == DeviceType::kCuda;
  on_all_ranks(world, [&] {
    if (on_gpus) select_cuda_device(mpi.gpu());
    folder.take(parsed.options, world.rank());
  });
  RunSetup setup = load(parsed.options, world, std::move(found));
  find_machine(setup, world);
  plan(setup, world);
  if (setup.options.logging.print_actions) return print_text(format_actions(setup.options, setup.config));
  watch(mpi, setup, stop, world.rank() == 0, timeout_of(flags, {}));
  const std::unique_ptr<Communicator> gpus = on_gpus ? gpu_world(mpi) : nullptr;
  print_banner(setup, world, parsed.notices);
  Trainer trainer(std::move(setup), gpus ? *gpus : world, stop, &world);
  folder.hand_to(trainer);
  const ExitCode code = trainer.run();
  if (code == ExitCode::kOk) check_standard_output();  // a stopped run already has another exit code
  return code;
}

}  // namespace

ExitCode start_training(int argc, char** argv, StopRequest& stop, std::unique_ptr<MpiRuntime>& mpi,
                        std::string& label) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  std::optional<StartWatch> start(label);
  start->begin({.what = "flags and configuration",
                .expected = "all files of --config to be read",
                .remedy = "check that the disk of these files responds"},
               at_start(megalith::timeout_of(arguments)));
  const Flags flags = read_flags(arguments, static_cast<int>(launch_of(LaunchSigns::kCertain).rank));
  const Options& options = flags.read.options;
  if (options.deterministic_mode) set_deterministic_environment();
  if (options.memory.cuda_graph_impl != CudaGraphImpl::kNone) set_graphs_environment();
  const std::chrono::milliseconds timeout = at_start(timeout_of(flags, arguments));
  start->begin({.what = "MPI_Init",
                .expected = "all ranks",
                .remedy = "check that each rank was started, and that the hosts reach each other"},
               timeout);
  mpi = std::make_unique<MpiRuntime>(argc, argv, MpiOptions{.timeout = timeout});
  const std::unique_ptr<Communicator> world = mpi->world();
  start.reset();
  label = fmt::format("rank {}/{}", world->rank(), world->size());
  return train(*mpi, *world, flags, stop);
}

std::chrono::milliseconds timeout_of(double comm_timeout_seconds, double distributed_timeout_minutes) {
  const double seconds = comm_timeout_seconds > 0 ? comm_timeout_seconds : 60 * distributed_timeout_minutes;
  return std::chrono::milliseconds(std::max<std::int64_t>(1, std::llround(seconds * 1000)));
}

std::chrono::milliseconds at_start(std::chrono::milliseconds timeout) {
  return std::max<std::chrono::milliseconds>(timeout, std::chrono::seconds(5));
}

std::chrono::milliseconds timeout_of(const std::vector<std::string>& arguments) {
  double seconds = 0, minutes = 10;
  const auto take = [&](std::size_t at, std::string_view flag, double& value) {
    const std::string& word = arguments[at];
    const char* text = "";
    if (word == flag && at + 1 < arguments.size()) text = arguments[at + 1].c_str();
    if (word.size() > flag.size() && word.starts_with(flag) && word[flag.size()] == '=')
      text = word.c_str() + flag.size() + 1;
    const double read = std::strtod(text, nullptr);
    if (read > 0 && read < 1e8) value = read;  // the flags report its error
  };
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    take(i, "--comm-timeout", seconds);
    take(i, "--distributed-timeout-minutes", minutes);
  }
  return timeout_of(seconds, minutes);
}

std::string label_of_launch() {
  const Launch launch = launch_of(LaunchSigns::kCertain);
  return launch.ranks == 1 ? "rank 0/1" : fmt::format("rank {}/{}", launch.rank, launch.ranks);
}

}  // namespace megalith
