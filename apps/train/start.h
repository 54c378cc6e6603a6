// Start of train from the command line to the first step, as a list of phases (start.cpp).
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/machine/stop_request.h"
#include "parallel/comm/mpi/mpi_runtime.h"

namespace megalith {

// Runs train on this rank to its end. Starts `mpi`, and sets `label` to the rank, "rank 1/2". `stop`: request of the
// process's signals. Errors of one rank end all ranks with its exit code.
ExitCode start_training(int argc, char** argv, StopRequest& stop, std::unique_ptr<MpiRuntime>& mpi, std::string& label);

// Timeout of --comm-timeout or --distributed-timeout-minutes while the flags are read: a file that they give may hang.
std::chrono::milliseconds timeout_of(const std::vector<std::string>& arguments);
std::chrono::milliseconds timeout_of(double comm_timeout_seconds, double distributed_timeout_minutes);

// Timeout of at least five seconds: on a busy machine programs load slowly, and ranks start at different times.
std::chrono::milliseconds at_start(std::chrono::milliseconds timeout);

// Text such as "rank 1/2", from the launcher's variables.
std::string label_of_launch();

}  // namespace megalith
