// train: the main program, one process per rank under mpirun. start.cpp has the phases of its start.
#include <memory>
#include <optional>
#include <string>

#include "apps/run/ranks_program.h"
#include "apps/train/start.h"
#include "core/base/files/mapped_file.h"
#include "core/base/files/standard_files.h"
#include "core/base/machine/cpu_check.h"
#include "core/base/machine/stop_request.h"
#include "parallel/comm/mpi/rank_link.h"

namespace megalith {
namespace {

StopRequest stop_request;

}  // namespace
}  // namespace megalith

int main(int argc, char** argv) {
  using namespace megalith;
  require_cpu_baseline();
  if (const std::optional<int> code = run_rank_link(argc, argv)) return *code;
  guard_standard_files();
  end_on_lost_mappings();
  set_mpi_environment();
  // A signal ahead of the first step ends the run after this step.
  for (const int signal : kForwardedSignals) stop_on_signal(signal, stop_request);
  std::string label = label_of_launch();
  std::unique_ptr<MpiRuntime> mpi;
  return run_ranks("train", label, mpi, [&] { return start_training(argc, argv, stop_request, mpi, label); });
}
