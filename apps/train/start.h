// The start of train, from the command line to the first step, as a list of phases (start.cpp).
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/machine/stop_request.h"
#include "parallel/comm/mpi/mpi_runtime.h"

namespace megalith {

// Runs train on this rank to its end. Starts `mpi`, and names the rank in `label`, "rank 1/2". `stop` is that of the
// process's signals. Errors of one rank end all ranks with its exit code.
ExitCode start_training(int argc, char** argv, StopRequest& stop, std::unique_ptr<MpiRuntime>& mpi, std::string& label);

// What --comm-timeout or --distributed-timeout-minutes will say, for the time in which the flags are read: files that
// they name may hang.
std::chrono::milliseconds timeout_of(const std::vector<std::string>& arguments);
std::chrono::milliseconds timeout_of(double comm_timeout_seconds, double distributed_timeout_minutes);

// At least five seconds: programs are loaded, and on a busy machine ranks do not start at one time.
std::chrono::milliseconds at_start(std::chrono::milliseconds timeout);

// "rank 1/2", as far as the launcher's variables say it.
std::string label_of_launch();

}  // namespace megalith
