// Steps of a collective procedure that may fail on some ranks: each rank attempts its part, then all agree.
#pragma once

#include <exception>
#include <string>

#include "parallel/checkpoint/rank_sync.h"

namespace megalith {

// What went wrong in `work`, or "".
template <class Work>
std::string attempt(Work&& work) {
  try {
    work();
    return {};
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return text.empty() ? "unknown error" : text;
  }
}

// Collective. "" when every rank passes "", else one text on all ranks that names the ranks and their errors.
std::string agree(const RankSync& sync, const std::string& error);

}  // namespace megalith
