// Frame of every program's main after require_cpu_baseline(): it turns errors into one line and an exit code.
#pragma once

#include <functional>
#include <string_view>

#include "core/base/error.h"

namespace megalith {

// Runs a single-process program and returns its exit code.
// Rejects several processes of one launcher, since all would write the same files.
int run_program(std::string_view name, const std::function<ExitCode()>& work);

// Prints "NAME: error: [label] message" for the current exception to standard error; returns its exit code.
ExitCode report_exception(std::string_view name, std::string_view label);

// Calls `end` instead of std::abort if an exception leaves a function that must not throw. An example is the destructor
// of a JSON value, which allocates. `end` may call report_exception() and ends the process. Each call replaces the last
// one; nullptr removes `end`.
void end_where_no_throw(std::function<void()> end);

}  // namespace megalith
