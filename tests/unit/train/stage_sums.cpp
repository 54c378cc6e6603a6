#include "tests/unit/train/stage_sums.h"

#include "core/ops/elementwise/elementwise.h"

namespace megalith::test {

StageSums::StageSums(Rank& rank)
    : stage_(rank.mesh.world().split(rank.stage(), rank.mesh.world().rank(), "stage")),
      stream_(rank.streams.compute.device(), "own", rank.streams.compute.instruments()),
      ones_(rank.memory.pool.allocate(sizeof(float), MemoryCategory::kOther, "ones"), DType::kFp32, {1}) {
  for (int s = 0; s < rank.runner.num_segments(); ++s) {
    for (int point = 0; point < kNumHookPoints; ++point)
      rank.runner.hooks(s).add(static_cast<HookPoint>(point), [this](const HookContext& at) { sum(at); });
  }
}

void StageSums::sum(const HookContext& at) {
  Stream& compute = at.ctx->compute;
  launch(compute, Fill{.x = ones_, .value = 1});
  compute.record(before_);
  stream_.wait(before_);
  launch(stream_, AllReduce{.group = *stage_, .buffer = ones_});
  stream_.record(after_);
  compute.wait(after_);
  ++calls_[at.phase];
}

}  // namespace megalith::test
