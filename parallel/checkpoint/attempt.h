// Steps of a procedure that may fail.
#pragma once

#include <functional>
#include <string>

#include "parallel/comm/communicator.h"

namespace megalith {

// What went wrong in `work`, or "". Not for memory that ran out: that is thrown on, for the program to end on all
// ranks; it says nothing about the files.
std::string attempt(const std::function<void()>& work);

// Collective. "" when `work` succeeded on every rank, else one text on all ranks that names the ranks and their errors.
std::string attempt_on_all_ranks(Communicator& ranks, const std::function<void()>& work);

// Adds what went wrong to what did before.
void add_problem(std::string& problems, const std::string& problem);

}  // namespace megalith
