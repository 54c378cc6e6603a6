#include "parallel/checkpoint/attempt.h"

#include <exception>
#include <new>

#include "parallel/comm/on_all_ranks.h"

namespace megalith {

std::string attempt(const std::function<void()>& work) {
  try {
    work();
    return {};
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return text.empty() ? "unknown error" : text;
  }
}

std::string attempt_on_all_ranks(Communicator& ranks, const std::function<void()>& work) {
  return to_string(failures_on_all_ranks(ranks,
                                         [&] {
                                           const std::string problem = attempt(work);
                                           if (!problem.empty()) throw Error(ExitCode::kFileIo, problem);
                                         }),
                   ranks);
}

void add_problem(std::string& problems, const std::string& problem) {
  if (!problem.empty()) problems += (problems.empty() ? "" : "; ") + problem;
}

}  // namespace megalith
