// A model for forward passes alone: weights, stream, arena and segments. Ranks may shard the weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "apps/config/options.h"
#include "core/device/stream.h"
#include "core/memory/arena.h"
#include "core/memory/memory_pool.h"
#include "core/model/gpt.h"
#include "fsdp/sharded_forward.h"
#include "parallel/pipeline_parallel/segment_runner.h"

namespace megalith {

class InferenceModel {
 public:
  // `options.model` is resolved, with the vocabulary. `ranks` shard the weights and make the same calls; null: one
  // rank. `loss_chunk_size` is the head's (lm_head.h).
  InferenceModel(const Options& options, DeviceType device, Communicator* ranks, Instruments instruments,
                 std::int64_t loss_chunk_size = 0);

  MemoryPool& pool() { return pool_; }
  Stream& compute() { return compute_; }
  Arena& arena() { return arena_; }
  const Context& context() const { return ctx_; }
  ParameterStore& parameters() { return *gpt_.parameters; }
  ShardedForward* shards() const { return shards_.get(); }  // null on one rank
  bool is_plan() const { return pool_.device() == DeviceType::kPlan; }

  // Enqueues forward of all segments; returns the outputs of the last one.
  const TensorList& forward(const Microbatch& microbatch);

 private:
  MemoryPool pool_;
  Stream compute_;
  Arena arena_;
  GptModel gpt_;
  const Context ctx_;
  std::unique_ptr<SegmentRunner> runner_;
  std::unique_ptr<ShardedForward> shards_;
};

// Learned positions of the model, which bound its sequences; none for other models.
std::optional<std::int64_t> max_positions(const Options& options);

// Memory of a model and its buffers on each of a number of ranks.
struct InferenceBytes {
  std::size_t weights = 0;   // shards, slots and unsharded weights
  std::size_t kv_cache = 0;  // with other memory that lasts
  std::size_t arena = 0;     // per step
  std::size_t total() const { return weights + kv_cache + arena; }
};
// Memory of the weights of a plan's model, and of what else its pool holds.
InferenceBytes lasting_bytes(const MemoryPool& pool);

// Exit code 6 if a rank needs more than `free` bytes; the error reports a sufficient number of ranks. 0: unknown.
// `bytes` forecasts the memory on a number of ranks; `remedy` is for a model that no number of ranks can hold.
void check_memory(const std::function<InferenceBytes(int ranks)>& bytes, int ranks, std::size_t free,
                  const std::string& remedy);

}  // namespace megalith
