// Main function of a program of several ranks: one line and one exit code, whichever ranks fail.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "parallel/comm/mpi/mpi_runtime.h"

namespace megalith {

// Runs `work`, which starts `mpi` and sets `label` to the rank, "rank 1/2". Returns the process's exit code.
int run_ranks(std::string_view name, const std::string& label, const std::unique_ptr<MpiRuntime>& mpi,
              const std::function<ExitCode()>& work);

}  // namespace megalith
