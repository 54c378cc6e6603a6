// Work that all ranks of a group do and that may fail on some, such as reading files. All agreement on failures uses
// these functions, so that all ranks end, or continue, in order.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "parallel/comm/communicator.h"

namespace megalith {

struct RankFailure {
  int rank = 0;
  ExitCode code = ExitCode::kInternal;
  std::string message;
};

// Thrown on all ranks of the group, with the message of the first rank that failed.
class EveryRankFailed : public Error {
 public:
  explicit EveryRankFailed(const RankFailure& first) : Error(first.code, first.message), rank_(first.rank) {}
  int rank() const { return rank_; }  // first rank that failed

 private:
  int rank_;
};

// Collective. Runs `work` and throws EveryRankFailed if it failed on any rank. After a possible failure, `work` must
// not wait for other ranks. Exhausted memory or threads are not failures of the work: they are thrown unchanged, to end
// the program.
void on_all_ranks(Communicator& group, const std::function<void()>& work);

// Variants for callers that continue after a failure: the first failure, or all by rank; equal on all ranks.
std::optional<RankFailure> failure_of_any(Communicator& group, const std::function<void()>& work);
std::vector<RankFailure> failures_on_all_ranks(Communicator& group, const std::function<void()>& work);

// "rank 1: no space; rank 3: no space" with the first few; only the message in a group of one rank.
std::string to_string(const std::vector<RankFailure>& failures, const Communicator& group);

}  // namespace megalith
