// Hooks that communicate: each sums over all ranks of its stage, on a dedicated stream that the compute stream waits
// for.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "apps/run/rank.h"

namespace megalith::test {

class StageSums {
 public:
  // At all points of all segments. Collective.
  explicit StageSums(Rank& rank);
  ~StageSums() { stream_.synchronize(); }
  StageSums(const StageSums&) = delete;
  StageSums& operator=(const StageSums&) = delete;

  std::int64_t calls(Phase phase) const { return calls_.contains(phase) ? calls_.at(phase) : 0; }
  std::int64_t collectives() const { return stage_->stats().collectives; }

 private:
  void sum(const HookContext& at);

  std::unique_ptr<Communicator> stage_;
  Stream stream_;
  Tensor ones_;
  Event before_{"before the sum"}, after_{"behind the sum"};
  std::map<Phase, std::int64_t> calls_;
};

}  // namespace megalith::test
