// Steps of a procedure that may fail.
#pragma once

#include <exception>
#include <functional>
#include <new>
#include <string>

#include "parallel/comm/on_all_ranks.h"

namespace megalith {

// What went wrong in `work`, or "". Not for memory that ran out: that is thrown on, for the program to end on all
// ranks; it says nothing about the files.
inline std::string attempt(const std::function<void()>& work) {
  try {
    work();
    return {};
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    return *error.what() == '\0' ? "unknown error" : error.what();
  }
}

// Collective. "" when `work` succeeded on every rank, else one text on all ranks that names the ranks and their errors.
inline std::string attempt_on_all_ranks(Communicator& ranks, const std::function<void()>& work) {
  const auto fails_as_error = [&] {
    const std::string problem = attempt(work);
    if (!problem.empty()) throw Error(ExitCode::kFileIo, problem);
  };
  return to_string(failures_on_all_ranks(ranks, fails_as_error), ranks);
}

// Adds what went wrong to what did before.
inline void add_problem(std::string& problems, const std::string& problem) {
  if (!problem.empty()) problems += (problems.empty() ? "" : "; ") + problem;
}

}  // namespace megalith
