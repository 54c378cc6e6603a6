// Forward passes of a model whose weights several ranks share out: each holds a shard of each unit, all go through the
// same tokens, and a layer is whole only while it is read, in slots as in training.
#pragma once

#include <memory>
#include <vector>

#include "core/model/gpt.h"
#include "fsdp/sharded_units.h"
#include "fsdp/unshard_lowering.h"
#include "parallel/comm/communicator.h"
#include "parallel/pipeline_parallel/segment_runner.h"

namespace megalith {

// Before the parameters are allocated. Tied words stay whole.
void share_out(GptModel& model, const Communicator& ranks);

class ShardedForward {
 public:
  // The parameters are allocated; all outlive this object. Collective.
  ShardedForward(GptModel& model, Communicator& ranks, Stream& compute, MemoryPool& pool,
                 const Instruments& instruments);
  ~ShardedForward();
  ShardedForward(const ShardedForward&) = delete;
  ShardedForward& operator=(const ShardedForward&) = delete;

  // Forward of all segments.
  void forward(SegmentRunner& runner);
  // What rank 0 drew: GPUs may add in another order.
  void agree(Stream& compute, const Tensor& drawn);

  std::int64_t gathers() const { return units_->gathers(); }

 private:
  std::unique_ptr<Communicator> gather_group_, tokens_group_;
  Stream gather_;
  UnshardPoints points_;
  std::vector<Action> actions_;
  std::unique_ptr<ShardedUnits> units_;
};

}  // namespace megalith
