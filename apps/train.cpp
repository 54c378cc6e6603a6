// train: the main program, one process per rank under mpirun.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "apps/flags.h"
#include "apps/program.h"
#include "apps/trainer.h"
#include "core/base/cpu_check.h"
#include "parallel/comm/mpi_runtime.h"

namespace {

megalith::StopRequest stop_request;

void request_stop(int) { stop_request.requested.store(true); }

struct EveryRankFailed {
  megalith::ExitCode code;
  int rank;  // the first that failed
  std::string message;
};

// Ranks read the same command line and files, so most errors come on all of them: rank 0 prints one for all.
template <class Work>
void together(megalith::Communicator& world, const Work& work) {
  using namespace megalith;
  std::string mine;
  ExitCode code = ExitCode::kOk;
  try {
    work();
  } catch (const Error& error) {
    mine = error.what();
    code = error.code();
  }
  const std::vector<std::string> all =
      world.host_all_gather(mine.empty() ? "" : fmt::format("{}:{}", static_cast<int>(code), mine));
  const auto first = std::find_if(all.begin(), all.end(), [](const std::string& e) { return !e.empty(); });
  if (first == all.end()) return;
  const std::size_t colon = first->find(':');
  throw EveryRankFailed{static_cast<ExitCode>(std::stoi(first->substr(0, colon))),
                        static_cast<int>(first - all.begin()), first->substr(colon + 1)};
}

megalith::ExitCode train(megalith::Communicator& world, const std::vector<std::string>& arguments) {
  using namespace megalith;
  Parsed parsed;
  std::unique_ptr<RunSetup> setup;
  together(world, [&] {
    parsed = parse_flags(App::kTrain, arguments);
    if (parsed.print.empty())
      setup = std::make_unique<RunSetup>(prepare_run(parsed.options, world.rank(), world.size()));
  });
  if (!parsed.print.empty()) {
    if (world.rank() == 0) fmt::print("{}", parsed.print);
    return ExitCode::kOk;
  }
  std::signal(SIGXFSZ, SIG_IGN);  // a file-size limit then fails the save, not the run
  std::signal(SIGUSR1, request_stop);
  std::signal(SIGTERM, request_stop);
  Trainer trainer(std::move(*setup), world, stop_request);
  return trainer.run();
}

}  // namespace

int main(int argc, char** argv) {
  using namespace megalith;
  require_cpu_baseline();
  std::string label;
  std::unique_ptr<MpiRuntime> mpi;
  try {
    mpi = std::make_unique<MpiRuntime>(argc, argv);
    const std::unique_ptr<Communicator> group = mpi->world();
    Communicator& world = *group;
    label = fmt::format("rank {}/{}", world.rank(), world.size());
    return static_cast<int>(train(world, {argv + 1, argv + argc}));
  } catch (const EveryRankFailed& failed) {
    if (mpi->rank() == 0)
      fmt::print(stderr, "train: error: [rank {}/{}] {}\n", failed.rank, mpi->size(), failed.message);
    return static_cast<int>(failed.code);
  } catch (...) {
    const ExitCode code = report_exception("train", label);
    if (mpi) mpi->abort(code);  // ends the peers too, which might wait for this rank
    return static_cast<int>(code);
  }
}
