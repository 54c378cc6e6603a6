// train: the main program, one process per rank under mpirun.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/checkpoint_flags.h"
#include "apps/flags.h"
#include "apps/program.h"
#include "apps/save_lock.h"
#include "apps/together.h"
#include "apps/trainer.h"
#include "core/base/cpu_check.h"
#include "core/base/fault.h"
#include "core/base/file.h"
#include "core/base/mapped_file.h"
#include "core/device/cuda_device.h"
#include "parallel/comm/mpi_runtime.h"

namespace {

megalith::StopRequest stop_request;

// Tells at the start of the run what would otherwise come out at its end.
void check_save_folder(const std::string& folder) {
  using namespace megalith;
  const FaultScope scope("save.root");
  try {
    Directory::create(folder).check_writable();
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("--save: {}", error.what()));
  }
}

megalith::ExitCode train(megalith::MpiRuntime& mpi, megalith::Communicator& world,
                         const std::vector<std::string>& arguments) {
  using namespace megalith;
  std::optional<SaveLock> save_lock;
  std::unique_ptr<RunSetup> setup;
  FoundCheckpoint found;
  const Parsed parsed = parse_run(arguments, world, found);
  if (!parsed.print.empty()) {
    if (world.rank() == 0) fmt::print("{}", parsed.print);
    return ExitCode::kOk;
  }
  together(world, [&] {
    if constexpr (kCudaBuilt) {
      if (parsed.options.train.device == DeviceType::kCuda) select_cuda_device(mpi.local_rank());
    }
    const std::string& save = parsed.options.checkpoint.save;
    if (!save.empty()) check_save_folder(save);
    if (!save.empty() && !parsed.options.train.skip_train && world.rank() == 0) save_lock.emplace(save);
  });
  find_tokenizer_files(parsed.options, world, found);
  together(world, [&] {
    setup = std::make_unique<RunSetup>(prepare_run(parsed.options, world.rank(), world.size(), std::move(found)));
  });
  std::signal(SIGXFSZ, SIG_IGN);          // a file-size limit then fails the save, not the run
  stop_on_signal(SIGTERM, stop_request);  // until here there is nothing to save
  const ParallelOptions& parallel = parsed.options.parallel;
  const double seconds = parallel.comm_timeout > 0 ? parallel.comm_timeout
                                                   : 60.0 * static_cast<double>(parallel.distributed_timeout_minutes);
  mpi.watch({.timeout = std::chrono::milliseconds(std::max<std::int64_t>(1, std::llround(seconds * 1000))),
             .dump_folder = parallel.comm_dump});
  std::unique_ptr<Communicator> gpus;
  if (parsed.options.train.device == DeviceType::kCuda) gpus = mpi.world(DeviceType::kCuda);
  Trainer trainer(std::move(*setup), gpus ? *gpus : world, stop_request, &world);
  return trainer.run();
}

}  // namespace

int main(int argc, char** argv) {
  using namespace megalith;
  require_cpu_baseline();
  end_on_lost_mappings();
  stop_on_signal(SIGUSR1, stop_request);  // one that comes before the first step ends the run after it
  std::string label;
  std::unique_ptr<MpiRuntime> mpi;
  try {
    mpi = std::make_unique<MpiRuntime>(argc, argv);
    const std::unique_ptr<Communicator> group = mpi->world();
    Communicator& world = *group;
    label = fmt::format("rank {}/{}", world.rank(), world.size());
    return static_cast<int>(train(*mpi, world, {argv + 1, argv + argc}));
  } catch (const EveryRankFailed& failed) {
    if (mpi->rank() == 0)
      fmt::print(stderr, "train: error: [rank {}/{}] {}\n", failed.rank(), mpi->size(), failed.what());
    if (failed.code() == ExitCode::kCommunication) mpi->abort_together(failed.code());  // streams may wait for peers
    return static_cast<int>(failed.code());
  } catch (...) {
    const ExitCode code = report_exception("train", label);
    if (mpi) mpi->abort(code);  // ends the peers too, which might wait for this rank
    return static_cast<int>(code);
  }
}
