// Steps of a collective procedure that may fail on some ranks: each rank attempts its part, then all agree.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "parallel/checkpoint/rank_sync.h"

namespace megalith {

// What went wrong in `work`, or "". Not for memory that ran out: that is thrown on, for the program to end on all
// ranks; it says nothing about the files.
template <class Work>
std::string attempt(Work&& work) {
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

// Adds what went wrong to what did before.
void add_problem(std::string& problems, const std::string& problem);

// Collective. "" when every rank passes "", else one text on all ranks that names the ranks and their errors.
std::string agree(const RankSync& sync, const std::string& error);

}  // namespace megalith
