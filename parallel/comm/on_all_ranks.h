// Work that all ranks of a group do and that may fail on some of them, such as reading files: the one way to agree on a
// failure, so that all ranks end, or go on, in order.
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

// All ranks of the group throw it, with the message of the first that failed.
class EveryRankFailed : public Error {
 public:
  explicit EveryRankFailed(const RankFailure& first) : Error(first.code, first.message), rank_(first.rank) {}
  int rank() const { return rank_; }  // the first that failed

 private:
  int rank_;
};

// Collective. Runs `work` and throws EveryRankFailed where it failed on any rank. Once a rank may have failed in it,
// `work` must not wait for other ranks. Memory or threads that ran out are no failure of the work: they are thrown as
// they are, for the program to end.
void on_all_ranks(Communicator& group, const std::function<void()>& work);

// The same for those who go on after a failure: the first, or all by rank; equal on all ranks.
std::optional<RankFailure> failure_of_any(Communicator& group, const std::function<void()>& work);
std::vector<RankFailure> failures_on_all_ranks(Communicator& group, const std::function<void()>& work);

// "rank 1: no space; rank 3: no space" with the first few; the message alone in a group of one rank.
std::string to_string(const std::vector<RankFailure>& failures, const Communicator& group);

}  // namespace megalith
