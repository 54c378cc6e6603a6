// What every program's main does around its work, after require_cpu_baseline(): turns errors into one line and an exit
// code.
#pragma once

#include <functional>
#include <string_view>

#include "core/base/error.h"

namespace megalith {

// For the programs of one process; where a launcher started several, they are refused, since all would write the same
// files. Returns the process's exit code.
int run_program(std::string_view name, const std::function<ExitCode()>& work);

// The exit code of the exception being handled, after printing "NAME: [label] message" to standard error.
ExitCode report_exception(std::string_view name, std::string_view label);

// Has `end` called in place of std::abort where an exception would pass a function that may not throw, such as the
// destructor of a JSON value, which allocates. `end` handles that exception (report_exception() may be called) and ends
// the process. The last call counts; nullptr takes it back.
void end_where_no_throw(std::function<void()> end);

}  // namespace megalith
