#include "apps/run/ranks_program.h"

#include <fmt/format.h>

#include <cstdlib>

#include "core/base/exit_record.h"
#include "core/base/log.h"
#include "core/base/machine/program.h"
#include "parallel/comm/on_all_ranks.h"

namespace megalith {

namespace {

// Reports the current exception and returns its exit code.
int report_and_abort(std::string_view name, const std::string& label, const std::unique_ptr<MpiRuntime>& mpi) {
  const ExitCode code = report_exception(name, label);
  if (mpi) mpi->abort(code);  // also ends the peers, which may wait for this rank
  return static_cast<int>(code);
}

int code_of(std::string_view name, const std::string& label, const std::unique_ptr<MpiRuntime>& mpi,
            const std::function<ExitCode()>& work) {
  try {
    return static_cast<int>(work());
  } catch (const EveryRankFailed& failed) {
    if (mpi->rank() == 0)
      log_last_words(fmt::format("{}: error: [rank {}/{}] {}", name, failed.rank(), mpi->size(), failed.what()));
    // Streams may wait for peers, and a group that was aborted during unwinding cannot end in order.
    if (failed.code() == ExitCode::kCommunication || mpi->aborted()) mpi->abort_together(failed.code());
    return static_cast<int>(failed.code());
  } catch (...) {
    return report_and_abort(name, label, mpi);
  }
}

}  // namespace

int run_ranks(std::string_view name, const std::string& label, const std::unique_ptr<MpiRuntime>& mpi,
              const std::function<ExitCode()>& work) {
  end_where_no_throw([name, &label, &mpi] {
    const int code = report_and_abort(name, label, mpi);
    record_exit_code(code);
    std::_Exit(code);
  });
  const int code = code_of(name, label, mpi, work);
  end_where_no_throw(nullptr);
  record_exit_code(code);
  return code;
}

}  // namespace megalith
