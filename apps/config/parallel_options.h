// The layout of ranks, what they hold parts of, and how they exchange it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "core/model/moe_config.h"
#include "parallel/context_parallel/context_communication.h"

namespace megalith {

// kAuto: 1f1b, or interleaved where a stage has several chunks; the others as ScheduleKind has them.
enum class PipelineSchedule { kAuto, kGpipe, k1F1B, kInterleaved, kZbH1, kZbV, kDualPipeV };
// What data-parallel ranks hold parts of, each more than the one before. kAuto: kOptim with
// --use-distributed-optimizer, else kNoShard.
enum class ShardingStrategy { kAuto, kNoShard, kOptim, kOptimGrads, kOptimGradsParams };
enum class OuterSharding { kNoShard, kOptim };
enum class GradientReduction { kEach, kLast };  // with which of a step's microbatches
enum class EndUnits { kAuto, kSharded, kWhole };

struct ParallelOptions {
  std::int64_t tensor_model_parallel_size = 1;
  bool sequence_parallel = false;  // with it: norms, dropout and residuals are split along the tokens
  bool tp_comm_overlap = false;    // overlap gathers and sums of rows with GEMMs
  std::int64_t pipeline_model_parallel_size = 1;
  std::int64_t expert_model_parallel_size = 1;   // ranks that share out the experts of a layer
  std::int64_t expert_tensor_parallel_size = 1;  // ranks that share each expert
  MoeTokenDispatcher moe_token_dispatcher_type = MoeTokenDispatcher::kAuto;  // among these ranks, as the next two
  double moe_expert_rank_capacity_factor = 1.5;
  bool moe_shared_expert_overlap = false;
  std::int64_t context_parallel_size = 1;  // ranks that share each sequence
  ContextCommunication cp_comm_type = ContextCommunication::kP2p;
  PipelineSchedule pipeline_schedule = PipelineSchedule::kAuto;
  bool delay_wgrad_compute = false;                        // a chunk's weight gradients after all of its backward_data
  std::int64_t num_layers_per_virtual_pipeline_stage = 0;  // 0: not given, as the next five
  std::int64_t num_virtual_stages_per_pipeline_rank = 0;
  std::string pipeline_model_parallel_layout;  // as parse_layer_layout has it
  std::int64_t decoder_first_pipeline_num_layers = 0;
  std::int64_t decoder_last_pipeline_num_layers = 0;
  bool account_for_embedding_in_pipeline_split = false;
  bool account_for_loss_in_pipeline_split = false;
  bool use_distributed_optimizer = false;  // read shards_optimizer() instead, and sharding() for the next
  ShardingStrategy data_parallel_sharding_strategy = ShardingStrategy::kAuto;
  ShardingStrategy expert_data_parallel_sharding_strategy = ShardingStrategy::kAuto;  // read expert_sharding()
  bool use_megatron_fsdp = false;                                                     // changes nothing
  bool fsdp_double_buffer = false;                                                    // changes nothing
  std::int64_t fsdp_unit_slots = 2;      // buffers that whole units take turns in
  std::int64_t fsdp_gradient_slots = 0;  // likewise for their gradients; 0: as many
  std::int64_t fsdp_prefetch = 1;        // units gathered ahead of the one of their family in use
  GradientReduction fsdp_reduce_grads = GradientReduction::kEach;
  EndUnits fsdp_embedding_and_head = EndUnits::kAuto;
  std::int64_t num_distributed_optimizer_instances = 1;  // groups of data-parallel ranks that hold all parts
  OuterSharding outer_dp_sharding_strategy = OuterSharding::kNoShard;
  bool overlap_grad_reduce = false;               // with backward; otherwise one bucket after it
  bool overlap_param_gather = false;              // with the next forward; otherwise at the end of the step
  std::int64_t ddp_bucket_size = 40'000'000;      // parameters per gradient bucket
  std::int64_t distributed_timeout_minutes = 10;  // a collective that takes longer ends the job
  double comm_timeout = 0;                        // seconds, in place of it; 0: off
  std::string comm_dump = "comm-dump";            // folder for the last calls of each rank when one hangs
  std::int64_t world_size = 1;                    // plan only: ranks of the layout that is forecast

  ShardingStrategy sharding() const {  // never kAuto
    if (data_parallel_sharding_strategy != ShardingStrategy::kAuto) return data_parallel_sharding_strategy;
    return use_distributed_optimizer ? ShardingStrategy::kOptim : ShardingStrategy::kNoShard;
  }
  // Of experts, over the ranks that hold the same ones; never kAuto.
  ShardingStrategy expert_sharding() const {
    const bool is_own = expert_data_parallel_sharding_strategy != ShardingStrategy::kAuto;
    return is_own ? expert_data_parallel_sharding_strategy : sharding();
  }
  ShardingStrategy most_sharding() const { return std::max(sharding(), expert_sharding()); }
  std::int64_t expert_ranks() const { return expert_model_parallel_size * expert_tensor_parallel_size; }
  bool shards_optimizer() const { return sharding() != ShardingStrategy::kNoShard; }
};

}  // namespace megalith
