// Forward pass of a model whose units are sharded over several ranks, for `generate`. All ranks process the same
// tokens. Each layer is gathered into a slot (unit_slots.h) only while its forward reads it, as in training.
#pragma once

#include <memory>
#include <vector>

#include "core/model/gpt.h"
#include "fsdp/sharded_units.h"
#include "fsdp/unshard_lowering.h"
#include "parallel/comm/communicator.h"
#include "parallel/pipeline_parallel/segment_runner.h"

namespace megalith {

// Shards the units over `ranks`; called before the parameters are allocated. Tied word embeddings stay unsharded.
void shard_units(GptModel& model, const Communicator& ranks);

class ShardedForward {
 public:
  // Collective. The parameters are allocated. All arguments outlive this object.
  ShardedForward(GptModel& model, Communicator& ranks, Stream& compute, MemoryPool& pool,
                 const Instruments& instruments);
  ~ShardedForward();
  ShardedForward(const ShardedForward&) = delete;
  ShardedForward& operator=(const ShardedForward&) = delete;

  // Runs forward of all segments.
  void forward(SegmentRunner& runner);
  // Broadcasts the tokens that rank 0 sampled, since GPUs may sum in different orders.
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
