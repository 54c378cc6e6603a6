// Work that every rank does on the same input, such as reading flags and files: what fails on any rank fails on all, so
// that they end in order and one of them says why.
#pragma once

#include <functional>
#include <string>

#include "core/base/error.h"
#include "parallel/comm/communicator.h"

namespace megalith {

// All ranks of the world throw it, with the message of the first that failed.
class EveryRankFailed : public Error {
 public:
  EveryRankFailed(ExitCode code, int rank, const std::string& message) : Error(code, message), rank_(rank) {}
  int rank() const { return rank_; }  // the first that failed

 private:
  int rank_;
};

// Collective. Runs `work` and throws EveryRankFailed where it threw an Error on any rank. Once a rank may have failed
// in it, `work` must not wait for other ranks.
void together(Communicator& world, const std::function<void()>& work);

}  // namespace megalith
