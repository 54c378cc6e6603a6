// generate: continues prompts with a checkpoint of train, or scores it. Under mpirun its ranks shard the weights.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/config/program_options.h"
#include "apps/generate/programs.h"
#include "apps/run/ranks_program.h"
#include "core/base/files/standard_files.h"
#include "core/base/machine/cpu_check.h"
#include "core/base/machine/launch.h"
#include "core/base/machine/program.h"
#include "parallel/comm/mpi/mpi_runtime.h"
#include "parallel/comm/mpi/rank_link.h"
#include "parallel/comm/single_communicator.h"

namespace megalith {

namespace {

// Runs one rank. For a single process `mpi` is null and `world` has one rank.
ExitCode generate(int argc, char** argv, Communicator& world, MpiRuntime* mpi) {
  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  const bool evaluates = !arguments.empty() && arguments[0] == "evaluate";
  if (evaluates) arguments.erase(arguments.begin());
  Session session(evaluates ? App::kEvaluate : App::kGenerate, arguments, world, mpi);
  if (!session.print().empty()) {
    if (session.shows()) std::fputs(session.print().c_str(), stdout);
  } else if (evaluates) {
    evaluate_questions(session);
  } else if (!session.options().generate.prompt_file.empty()) {
    continue_prompt_file(session);
  } else if (session.options().generate.chat) {
    chat(session);
  } else {
    continue_prompt(session);
  }
  return ExitCode::kOk;
}

int generate_alone(int argc, char** argv) {
  return run_program("generate", [&] {
    SingleCommunicator world("generate");
    return generate(argc, argv, world, nullptr);
  });
}

int generate_together(int argc, char** argv, const Launch& launch) {
  guard_standard_files();
  set_mpi_environment();
  const std::string label = fmt::format("rank {}/{}", launch.rank, launch.ranks);
  std::unique_ptr<MpiRuntime> mpi;
  return run_ranks("generate", label, mpi, [&] {
    mpi = std::make_unique<MpiRuntime>(argc, argv);
    const std::unique_ptr<Communicator> world = mpi->world();
    if (world->size() == 1) {
      refuse_usage(launch.sign,
                   {.expected = fmt::format("a world of {} ranks in MPI", launch.ranks),
                    .got = "a world of 1 rank",
                    .remedy = fmt::format("start the ranks by mpirun -np {} of the Open MPI that generate was built "
                                          "with, or one process without a launcher",
                                          launch.ranks)});
    }
    const ExitCode code = generate(argc, argv, *world, mpi.get());
    check_standard_output();
    return code;
  });
}

}  // namespace

}  // namespace megalith

int main(int argc, char** argv) {
  using namespace megalith;
  require_cpu_baseline();
  if (const std::optional<int> code = run_rank_link(argc, argv)) return *code;
  const Launch launch = launch_of(LaunchSigns::kCertain);
  return launch.ranks == 1 ? generate_alone(argc, argv) : generate_together(argc, argv, launch);
}
