// train: the main program, one process per rank under mpirun.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "apps/flags.h"
#include "apps/program.h"
#include "apps/together.h"
#include "apps/trainer.h"
#include "core/base/cpu_check.h"
#include "core/device/cuda_device.h"
#include "parallel/comm/mpi_runtime.h"

namespace {

megalith::StopRequest stop_request;

void request_stop(int) { stop_request.requested.store(true); }

// Tells at the start of the run what would otherwise come out at its end.
void check_save_folder(const std::string& folder) {
  using namespace megalith;
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) std::filesystem::create_directories(folder, error);
  if (!error && access(folder.c_str(), W_OK | X_OK) != 0) error = {errno, std::generic_category()};
  if (error) {
    fail({.code = ExitCode::kFileIo,
          .subject = "--save " + folder,
          .expected = "a folder to write to",
          .got = error.message(),
          .show_place = false});
  }
}

megalith::ExitCode train(megalith::MpiRuntime& mpi, megalith::Communicator& world,
                         const std::vector<std::string>& arguments) {
  using namespace megalith;
  Parsed parsed;
  std::unique_ptr<RunSetup> setup;
  together(world, [&] {
    parsed = parse_flags(App::kTrain, arguments);
    if (!parsed.print.empty()) return;
    if constexpr (kCudaBuilt) {
      if (parsed.options.train.device == DeviceType::kCuda) select_cuda_device(mpi.local_rank());
    }
    if (!parsed.options.checkpoint.save.empty()) check_save_folder(parsed.options.checkpoint.save);
    setup = std::make_unique<RunSetup>(prepare_run(parsed.options, world.rank(), world.size()));
  });
  if (!parsed.print.empty()) {
    if (world.rank() == 0) fmt::print("{}", parsed.print);
    return ExitCode::kOk;
  }
  std::signal(SIGXFSZ, SIG_IGN);       // a file-size limit then fails the save, not the run
  std::signal(SIGTERM, request_stop);  // until here there is nothing to save
  mpi.set_timeout(std::chrono::minutes(parsed.options.parallel.distributed_timeout_minutes));
  std::unique_ptr<Communicator> gpus;
  if (parsed.options.train.device == DeviceType::kCuda) gpus = mpi.world(DeviceType::kCuda);
  Trainer trainer(std::move(*setup), gpus ? *gpus : world, stop_request);
  return trainer.run();
}

}  // namespace

int main(int argc, char** argv) {
  using namespace megalith;
  require_cpu_baseline();
  std::signal(SIGUSR1, request_stop);  // one that comes before the first step ends the run after it
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
    return static_cast<int>(failed.code());
  } catch (...) {
    const ExitCode code = report_exception("train", label);
    if (mpi) mpi->abort(code);  // ends the peers too, which might wait for this rank
    return static_cast<int>(code);
  }
}
