// Work that every rank does on the same input, such as reading flags and files: what fails on any rank fails on all, so
// that they end in order and one of them says why.
#pragma once

#include <functional>
#include <optional>
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

struct RankFailure {
  ExitCode code = ExitCode::kInternal;
  int rank = 0;
  std::string message;
};

// Collective. Runs `work`; the Error of the first rank on which it threw one.
std::optional<RankFailure> failure_of_any(Communicator& world, const std::function<void()>& work);

// Collective. Runs `work` and throws EveryRankFailed where it threw an Error on any rank. Once a rank may have failed
// in it, `work` must not wait for other ranks.
void together(Communicator& world, const std::function<void()>& work);

}  // namespace megalith
