// train: the main program, one process per rank under mpirun.
#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/checkpoint/checkpoint_flags.h"
#include "apps/checkpoint/save_lock.h"
#include "apps/flags/flags.h"
#include "apps/program/program.h"
#include "apps/run/own_model.h"
#include "apps/run/ranks_program.h"
#include "apps/summary/planned_graphs.h"
#include "apps/summary/printed_actions.h"
#include "apps/train/banner.h"
#include "apps/train/start_watch.h"
#include "apps/train/trainer.h"
#include "core/base/cpu_check.h"
#include "core/base/fault.h"
#include "core/base/file.h"
#include "core/base/launch.h"
#include "core/base/mapped_file.h"
#include "core/base/standard_files.h"
#include "core/device/cuda_device.h"
#include "parallel/comm/mpi/mpi_runtime.h"
#include "parallel/comm/nccl/nccl_communicator.h"
#include "parallel/comm/on_all_ranks.h"

namespace megalith {
namespace {

StopRequest stop_request;

// Tells at the start of the run what would otherwise come out at its end.
void check_save_folder(const std::string& folder) {
  const FaultScope scope("save.root");
  try {
    Directory::create(folder).check_writable();
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("--save: {}", error.what()));
  }
}

// Processes that MPI knows nothing of each other would all be rank 0, and write the same files. Any sign of a launch is
// enough here: training on one rank where more were asked for is dear and shows late.
void check_launch(int world) {
  const Launch launch = launch_of(LaunchSigns::kAny);
  if (world > 1 || launch.ranks == 1) return;
  refuse_usage(
      launch.sign,
      {.expected = fmt::format("a world of {} ranks in MPI", launch.ranks),
       .got = "one of 1 rank",
       .remedy = fmt::format("start the ranks by mpirun -np {} of the Open MPI that train was built with, or by srun "
                             "--mpi=pmix; mpirun -np 1 where one rank is meant",
                             launch.ranks)});
}

// The flags as they were given, or why they cannot be read, which all ranks tell together.
struct Flags {
  std::unique_ptr<FlagParser> parser;
  Parsed read;
  std::optional<Error> error;
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
  if (flags.error || !flags.read.print.empty()) return megalith::timeout_of(arguments);
  return megalith::timeout_of(parallel.comm_timeout, static_cast<double>(parallel.distributed_timeout_minutes));
}

ExitCode train(MpiRuntime& mpi, Communicator& world, const Flags& flags) {
  std::optional<SaveLock> save_lock;
  std::unique_ptr<RunSetup> setup;
  FoundCheckpoint found;
  const auto take_folder = [&](const Options& options) {
    const std::string& save = options.checkpoint.save;
    if (options.logging.print_actions) return;
    if (!options.train.skip_train && world.rank() == 0) StopFile(options.train.stop_file).require_free();
    if (save.empty()) return;
    check_save_folder(save);
    if (!options.train.skip_train && world.rank() == 0) save_lock.emplace(save);
  };
  // Before a checkpoint is looked for: a run that is ending may still save a newer one.
  const bool takes_flags = flags.read.print.empty() && flags.read.options.checkpoint.use_checkpoint_args;
  on_all_ranks(world, [&] {
    if (flags.error) throw *flags.error;
    if (flags.read.print.empty()) check_launch(world.size());
    if (takes_flags) take_folder(flags.read.options);
  });
  Parsed parsed = flags.read.print.empty() ? finish_flags(*flags.parser, flags.read, world, found) : flags.read;
  if (!parsed.print.empty()) {
    if (world.rank() == 0) fmt::print("{}", parsed.print);
    return ExitCode::kOk;
  }
  on_all_ranks(world, [&] {
    if (parsed.options.train.device == DeviceType::kCuda) select_cuda_device(mpi.gpu());
    if (!takes_flags) take_folder(parsed.options);
  });
  find_start(parsed.options, world, found);
  on_all_ranks(world, [&] {
    setup = std::make_unique<RunSetup>(load_run(parsed.options, world.rank(), world.size(), std::move(found)));
  });
  find_machine(*setup, world);
  on_all_ranks(world, [&] { plan_run(*setup, world.rank()); });
  const std::vector<StepGraphs> graphs = world.host_gather(setup->plans.graphs);
  on_all_ranks(world, [&] { check_captured_modules(setup->options.train, graphs); });
  decide_on_ends(*setup, world);
  if (parsed.options.logging.print_actions) {
    if (world.rank() == 0) fmt::print("{}", printed_actions(setup->options, setup->config));
    return ExitCode::kOk;
  }
  for (const int signal : kStopSignals)  // until here there was nothing to save
    stop_on_signal(signal, stop_request, world.rank() == 0);
  const auto place_of = [sizes = setup->config.mesh](int rank) { return rank_place(sizes, rank); };
  const bool splits_experts = setup->config.mesh.ep * setup->config.mesh.etp > 1;
  mpi.watch({.timeout = timeout_of(flags, {}),
             .dump_folder = parsed.options.parallel.comm_dump,
             .place_of = splits_experts ? place_of : std::function<std::string(int)>()});
  std::unique_ptr<Communicator> gpus;
  if (parsed.options.train.device == DeviceType::kCuda) gpus = gpu_world(mpi);
  print_banner(*setup, world);
  Trainer trainer(std::move(*setup), gpus ? *gpus : world, stop_request, &world);
  if (save_lock) trainer.checkpoints().hold_folder([&](const Directory& folder) { save_lock->hold(folder); });
  const ExitCode code = trainer.run();
  if (code == ExitCode::kOk) check_standard_output();  // a run that was stopped has told so by its exit code
  return code;
}

ExitCode start(int argc, char** argv, std::unique_ptr<MpiRuntime>& mpi, std::string& label) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  std::optional<StartWatch> watch(label);
  watch->begin({.what = "flags and configuration",
                .expected = "all files of --config to be read",
                .remedy = "see whether the disk that holds them answers"},
               at_start(megalith::timeout_of(arguments)));
  const Flags flags = read_flags(arguments, static_cast<int>(launch_of(LaunchSigns::kCertain).rank));
  const Options& options = flags.read.options;
  if (options.train.deterministic_mode) set_deterministic_environment();
  if (options.train.cuda_graph_impl != CudaGraphImpl::kNone) set_graphs_environment();
  const std::chrono::milliseconds timeout = at_start(timeout_of(flags, arguments));
  watch->begin({.what = "MPI_Init",
                .expected = "all ranks",
                .remedy = "see whether each of them was started, and whether their machines reach each other"},
               timeout);
  mpi = std::make_unique<MpiRuntime>(argc, argv, MpiOptions{.timeout = timeout});
  const std::unique_ptr<Communicator> world = mpi->world();
  watch.reset();
  label = fmt::format("rank {}/{}", world->rank(), world->size());
  return train(*mpi, *world, flags);
}

std::string label_of_launch() {
  const Launch launch = launch_of(LaunchSigns::kCertain);
  return launch.ranks == 1 ? "rank 0/1" : fmt::format("rank {}/{}", launch.rank, launch.ranks);
}

}  // namespace
}  // namespace megalith

int main(int argc, char** argv) {
  using namespace megalith;
  require_cpu_baseline();
  guard_standard_files();
  end_on_lost_mappings();
  set_mpi_environment();
  // One that comes before the first step ends the run after it.
  for (const int signal : kHandedOnSignals) stop_on_signal(signal, stop_request);
  std::string label = label_of_launch();
  std::unique_ptr<MpiRuntime> mpi;
  return run_ranks("train", label, mpi, [&] { return start(argc, argv, mpi, label); });
}
